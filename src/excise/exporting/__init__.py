"""A scrubber or an eraser inside other people's formats: ordinary weights, LoRA adapters, encoders, graphs."""
