"""Labels of words on sub-word pieces: every word of a corpus, three kinds of tokenizer, and what must be refused."""

from __future__ import annotations

import json
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from language_data import (
    DATA,
    EWT,
    corpus,
    ewt,
    model_folder,
    needs_shared,
    pretrained_tokenizer,
    sentences,
    unigram_tokenizer,
)
from typer.testing import CliRunner

from excise.cli.app import app
from excise.errors import ConceptError, ExciseError, FileFormatError, InputError
from excise.text.corpora import read_labelled, read_spacy
from excise.text.tagged import TaggedText
from excise.text.tagging import tag
from excise.text.words import LabelledText, find_words, join_words, piece_bytes, piece_words

KINDS = ["neox", "bert", "unigram"]


def tokenizer(kind):
    return unigram_tokenizer() if kind == "unigram" else pretrained_tokenizer(kind)


def counted_by_character(row, offsets):
    """The label of each piece, by a list with the label of every character; and how often each label occurs."""
    of_character = [None] * len(row["text"])
    for start, end, label in zip(row["starts"], row["ends"], row["upos"], strict=True):
        for i in range(start, end):
            of_character[i] = label
    out = []
    for start, end in offsets:
        solid = [i for i in range(start, end) if row["text"][i].strip()]
        out.append(of_character[solid[0]] if solid else None)
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_every_piece_of_every_word_has_its_words_label(kind):
    check_every_piece(corpus(), sentences(), tokenizer(kind))


@pytest.mark.slow
@needs_shared
@pytest.mark.parametrize("kind", ["pocket-neox", "pocket-bert", "unigram"])
def test_every_piece_of_every_word_of_ewt_has_its_words_label(kind):
    check_every_piece(EWT, ewt(), tokenizer(kind))


def check_every_piece(path, rows, tok):
    data = tag(read_labelled(path, ["upos"]), tok, max_length=4096, progress=False)
    assert len(data) == len(rows)
    names, codes = data.names["upos"], data.labels["upos"]
    assert names == sorted({label for row in rows for label in row["upos"]})
    encoded = tok([row["text"] for row in rows], add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    for i, row in enumerate(rows):
        real = np.flatnonzero(~data.special[i])
        assert data.input_ids[i, real].tolist() == encoded["input_ids"][i]
        own = [names[code] if code >= 0 else None for code in codes[i, real]]
        assert own == counted_by_character(row, encoded["offset_mapping"][i]), row["text"]
        assert data.bytes[i].sum() == len(row["text"].encode())
    assert (codes[data.special] == -100).all()
    assert (data.bytes[data.special] == 0).all()
    # Not vacuous: there are more pieces than words, nearly every piece has a label, and all labels occur.
    assert (~data.special).sum() > 1.2 * sum(len(row["words"]) for row in rows)
    assert (codes[~data.special] >= 0).mean() > 0.85
    assert len(np.unique(codes)) == len(names) + 1


@pytest.mark.parametrize("kind", KINDS)
def test_packing_loses_nothing_and_doubles_nothing(kind):
    tok = tokenizer(kind)
    rows = [row for row in sentences() if row["split"] == "test"]
    padded = tag(read_labelled(corpus(), ["upos"], {"split": "test"}), tok, max_length=64, progress=False)
    ended = tag(read_labelled(corpus(), ["upos"], {"split": "test"}), tok, max_length=64, packed=True, progress=False)
    assert padded.bytes.sum() == ended.bytes.sum() == sum(len(row["text"].encode()) for row in rows)
    for name in ("input_ids", "bytes"):
        real = [getattr(data, name)[~data.special] for data in (padded, ended)]
        assert np.array_equal(*real)
    assert np.array_equal(padded.labels["upos"][~padded.special], ended.labels["upos"][~ended.special])
    spaced = tag(
        read_labelled(corpus(), ["upos"], {"split": "test"}),
        tok,
        max_length=64,
        packed=True,
        separator=" ",
        progress=False,
    )
    assert spaced.bytes.sum() == len(" ".join(row["text"] for row in rows).encode())
    assert (spaced.lengths[:-1] == 64).all()
    whole = " ".join(row["text"] for row in rows)
    if kind == "neox":
        assert tok.decode(spaced.input_ids[~spaced.special]) == whole
    assert (spaced.special[:, 0]).all()  # a start token, so that the first word is predicted too
    assert set(tok.convert_ids_to_tokens(np.unique(spaced.input_ids[:, 0]))) == {
        {"neox": "<|endoftext|>", "bert": "[CLS]", "unigram": "<s>"}[kind]
    }


@given(st.text(max_size=30), st.lists(st.integers(0, 30), max_size=6))
def test_bytes_add_up_whatever_the_text(text, cuts):
    borders = sorted({0, len(text), *(min(c, len(text)) for c in cuts)})
    spans = list(pairwise(borders))
    if spans:
        assert piece_bytes(text, spans).tolist() == [len(text[a:b].encode("utf-8", "surrogatepass")) for a, b in spans]
        assert piece_bytes(text, spans[:-1] or spans).sum() == len(text.encode("utf-8", "surrogatepass"))


def test_pieces_of_spaces_and_of_shared_characters():
    text = "  naïve  \U0001f600 x"
    starts, ends = find_words(text, ["naïve", "\U0001f600", "x"])
    assert [text[a:b] for a, b in zip(starts, ends, strict=True)] == ["naïve", "\U0001f600", "x"]
    offsets = [(0, 2), (0, 4), (4, 5), (4, 5), (5, 7), (7, 9), (8, 10), (9, 10), (9, 10), (10, 12), (12, 12)]
    assert piece_words(text, starts, ends, offsets).tolist() == [-1, 0, 0, 0, 0, -1, 1, 1, 1, 2, -1]
    assert piece_bytes(text, offsets).tolist() == [2, 2, 2, 0, 2, 2, 4, 0, 0, 2, 0]


def test_data_set_on_disk_is_the_same_again(tmp_path):
    pytest.importorskip("transformers")
    tok = pretrained_tokenizer("neox")
    texts = [
        LabelledText("It rains", [0, 3], [2, 8], {"pos": ["PRON", "VERB"], "mood": "sad"}),
        LabelledText("Unbelievably so!", [0, 13, 15], [12, 15, 16], {"pos": ["ADV", "ADV", None], "mood": "glad"}),
    ]
    data = tag(texts, tok, progress=False)
    data.save(tmp_path / "set")
    again = TaggedText.load(tmp_path / "set")
    assert again.names == {"pos": ["ADV", "PRON", "VERB"], "mood": ["glad", "sad"]}
    batches = again.batches(1, "mood")
    assert len(batches) == 2
    for _ in range(2):  # can be started again
        first, second = list(batches)
        assert first["concept"][0, 1:].tolist() == [1] * (first["input_ids"].shape[1] - 1)  # broadcast
        assert second["concept"][0, 0] == -100
        assert set(second) == {"input_ids", "attention_mask", "concept", "bytes", "special"}
    (both,) = again.batches(2, "pos")
    assert both["attention_mask"].sum(1).tolist() == again.lengths.tolist()
    assert (both["concept"][both["attention_mask"] == 0] == -100).all()
    assert both["concept"][1][again.lengths[1] - 1] == -100  # "!" has no label
    assert again.chunk_bytes.tolist() == [8, 16]
    assert again[1:].chunk_bytes.tolist() == [16]
    with pytest.raises(ConceptError, match=r"several concepts: say which; this data set has pos, mood"):
        again.batches(2)
    with pytest.raises(ConceptError, match=r"no concept 'tense'"):
        again.batches(2, "tense")


def test_label_names_of_another_data_set_and_unknown_ones():
    tok = pretrained_tokenizer("neox")
    text = LabelledText("It rains", [0, 3], [2, 8], {"pos": ["PRON", "VERB"]})
    data = tag([text], tok, names={"pos": ["VERB", "NOUN", "PRON"]}, progress=False)
    assert data.names["pos"] == ["VERB", "NOUN", "PRON"]
    assert data.labels["pos"][data.labels["pos"] >= 0].tolist()[0] == 2
    with pytest.raises(ConceptError, match=r"unknown label 'VERB' of 'pos'; the names given are NOUN, PRON"):
        tag([text], tok, names={"pos": ["NOUN", "PRON"]}, progress=False)


CONLLU = """# sent_id = 1
# text = Je viens du Café, don't.
1\tJe\tje\tPRON\tPRP\tNumber=Sing|Person=1\t2\tnsubj\t_\t_
2\tviens\tvenir\tVERB\t_\t_\t0\troot\t_\t_
3-4\tdu\t_\t_\t_\t_\t_\t_\t_\t_
3\tde\tde\tADP\t_\t_\t5\tcase\t_\t_
4\tle\tle\tDET\t_\t_\t5\tdet\t_\t_
5\tCafé\tcafé\tNOUN\t_\tNumber=Plur\t2\tobl\t_\tSpaceAfter=No
6\t,\t,\tPUNCT\t_\t_\t2\tpunct\t_\t_
6.1\tghost\t_\tVERB\t_\t_\t_\t_\t_\t_
7-8\tdon't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
7\tdo\tdo\tAUX\t_\t_\t2\taux\t_\t_
8\tn't\tnot\tPART\t_\t_\t2\tadvmod\t_\t_
9\t.\t.\tPUNCT\t_\t_\t2\tpunct\t_\t_
"""


def test_conllu(tmp_path):
    path = tmp_path / "x.conllu"
    path.write_text(CONLLU + "\n" + CONLLU.replace("# text = Je viens du Café, don't.\n", ""), encoding="utf-8")
    first, second = read_labelled(path, ["upos", "feats.Number", "deprel"])
    words = ["Je", "viens", "du", "Café", ",", "do", "n't", "."]
    for sentence in (first, second):  # the second has its text from SpaceAfter
        assert sentence.text == "Je viens du Café, don't."
        spans = zip(sentence.starts, sentence.ends, strict=True)
        assert [sentence.text[a:b] for a, b in spans] == words
        assert sentence.labels["upos"] == ["PRON", "VERB", None, "NOUN", "PUNCT", "AUX", "PART", "PUNCT"]
        assert sentence.labels["feats.Number"] == ["Sing", None, None, "Plur", None, None, None, None]
        assert sentence.labels["deprel"][3] == "obl"
    with pytest.raises(ConceptError, match=r"CoNLL-U has .*'feats.Number'.*got 'feats'"):
        list(read_labelled(path, ["feats"]))
    path.write_text(CONLLU.replace("\t_\tSpaceAfter=No\n6", "\n6"), encoding="utf-8")
    with pytest.raises(FileFormatError, match=r"line 8: expected 10 columns, got 8"):
        list(read_labelled(path, ["upos"]))


def test_rows_of_every_form(tmp_path):
    rows = {
        "spans": {"text": "It  rains.", "starts": [0, 4], "ends": [2, 9], "pos": ["PRON", "VERB"]},
        "text and words": {"text": "It  rains.", "words": ["It", "rains", "."], "pos": ["PRON", "VERB", None]},
        "words": {"words": ["It", "rains"], "pos": ["PRON", "VERB"]},
        "one label": {"text": "It  rains.", "pos": "VERB"},
    }
    for name, row in rows.items():
        jsonl, parquet = tmp_path / "x.jsonl", tmp_path / "x.parquet"
        jsonl.write_text(json.dumps(row) + "\n\n", encoding="utf-8")
        pq.write_table(pa.Table.from_pylist([row]), parquet)
        for path in (jsonl, parquet):
            (text,) = read_labelled(path, ["pos"])
            found = [text.text[a:b] for a, b in zip(text.starts, text.ends, strict=True)]
            if name == "one label":
                assert found == ["It  rains."]
                assert text.labels_of("pos") == ["VERB"]
            else:
                assert found[:2] == ["It", "rains"]
                assert text.labels_of("pos")[:2] == ["PRON", "VERB"]


@needs_shared
def test_brown_has_words_only():
    rows = pq.read_table(DATA / "pos_brown.parquet").slice(0, 500).to_pylist()
    texts = [text for text, _ in zip(read_labelled(DATA / "pos_brown.parquet", ["tags"]), rows, strict=False)]
    for text, row in zip(texts, rows, strict=True):
        assert text.text.split(" ") == row["words"]
        assert text.labels_of("tags") == row["tags"]


def test_spacy_by_its_interface():
    def document(text):
        tokens = []
        for word, pos in (("It", "PRON"), ("  ", "SPACE"), ("rains", "VERB"), ("!", "")):
            tokens.append(SimpleNamespace(text=word, idx=text.index(word), pos_=pos))
        return type("Doc", (), {"text": text, "__iter__": lambda self: iter(tokens)})()

    pipeline = SimpleNamespace(pipe=lambda texts: map(document, texts))
    (text,) = read_spacy(["It  rains!"], pipeline)
    assert list(zip(text.starts, text.ends, text.labels["pos"], strict=True)) == [
        (0, 2, "PRON"),
        (4, 9, "VERB"),
        (9, 10, None),
    ]
    with pytest.raises(ConceptError, match="no attribute 'dep_'"):
        list(read_spacy(["It  rains!"], pipeline, "dep"))
    try:
        import spacy  # noqa: F401
    except ImportError:
        with pytest.raises(ExciseError, match=r"needs spaCy: pip install 'excise\[text\]'"):
            next(read_spacy(["It rains"], "en_core_web_sm"))


BAD = {
    "after the end": (dict(starts=[0, 3], ends=[2, 9]), "word 1 has offsets 3 to 9, outside the text of 8 characters"),
    "negative": (dict(starts=[-1, 3], ends=[2, 8]), "word 0 has offsets -1 to 2"),
    "empty": (dict(starts=[0, 3], ends=[0, 8]), "word 0 has offsets 0 to 0"),
    "overlap": (dict(starts=[0, 1], ends=[2, 8]), "words 0 and 1 overlap"),
    "unequal": (dict(starts=[0], ends=[2, 8]), "1 starts but 2 ends"),
    "labels": (dict(starts=[0], ends=[2]), "2 labels of 'pos' for 1 words"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_offsets_are_refused(case, tmp_path):
    spans, message = BAD[case]
    with pytest.raises(InputError, match=message):
        LabelledText("It rains", **spans, labels={"pos": ["PRON", "VERB"]})
    (tmp_path / "x.jsonl").write_text(
        json.dumps({"text": "It rains", **spans, "pos": ["PRON", "VERB"]}), encoding="utf-8"
    )
    with pytest.raises(InputError, match=r"x.jsonl, row 0: "):
        list(read_labelled(tmp_path / "x.jsonl", ["pos"]))


def test_other_bad_input(tmp_path):
    slow = SimpleNamespace(is_fast=False)
    with pytest.raises(InputError, match=r"gives no character offsets.*fast tokenizer"):
        tag(iter(()), slow)
    with pytest.raises(InputError, match="tokenizer gave offsets from 0 to 9 in a text of 8"):
        piece_words("It rains", [0], [2], [(0, 9)])
    with pytest.raises(InputError, match=r"word 1 \('snows'\) is not at character 3"):
        find_words("It rains", ["It", "snows"])
    with pytest.raises(InputError, match=r"word 1 .* is empty"):
        join_words(["It", ""])
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_labelled(tmp_path / "none.parquet", ["pos"])
    (tmp_path / "x.jsonl").write_text('{"text": "a", "split": "train", "pos": "X"}\n', encoding="utf-8")
    with pytest.raises(InputError, match="has no column 'tag'; it has text, split, pos"):
        list(read_labelled(tmp_path / "x.jsonl", ["tag"]))
    with pytest.raises(InputError, match="no rows with split = test: the data set would be empty"):
        list(read_labelled(tmp_path / "x.jsonl", ["pos"], {"split": "test"}))
    (tmp_path / "x.jsonl").write_text("{\n", encoding="utf-8")
    with pytest.raises(FileFormatError, match="line 1 is not JSON"):
        list(read_labelled(tmp_path / "x.jsonl", ["pos"]))
    with pytest.raises(FileNotFoundError, match="make one with `excise tag`"):
        TaggedText.load(tmp_path)


def test_no_texts_and_no_room_are_refused():
    tok = pretrained_tokenizer("neox")
    with pytest.raises(InputError, match="no texts: the data set would be empty"):
        tag([], tok, progress=False)
    with pytest.raises(InputError, match="texts have no tokens"):
        tag([LabelledText("", [], [], {"pos": []})], tok, progress=False)
    with pytest.raises(InputError, match="leaves no room beside 1 special token"):
        tag([], tok, max_length=1)
    with pytest.raises(InputError, match=r"start must be a token.*'<nothing>'"):
        tag([], tok, start="<nothing>")
    data = tag([LabelledText("It rains", [0], [2], {"pos": ["X"]})], tok, progress=False)
    data.check_tokenizer(tok)
    with pytest.raises(InputError, match=r"tagged with another tokenizer \(.*420 tokens\).*tag the text again"):
        data.check_tokenizer(pretrained_tokenizer("bert"))


def test_the_command(tmp_path):
    runner = CliRunner()

    def command(*arguments):
        result = runner.invoke(app, [str(a) for a in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    common = [corpus(), model_folder("neox"), "-c", "upos", "--packed", "--separator", " ", "--max-length", "256"]
    said = command("tag", *common, "--where", "split=dev", "-o", tmp_path / "dev")
    assert "300 texts" in said
    assert "15 labels" in said
    data = TaggedText.load(tmp_path / "dev")
    assert data.input_ids.shape[1] == 256
    command("tag", *common, "--where", "split=test", "--like", tmp_path / "dev", "-o", tmp_path / "test")
    assert TaggedText.load(tmp_path / "test").names == data.names
    with pytest.raises(ExciseError, match="--where takes column=value"):
        command("tag", *common, "--where", "dev")
    with pytest.raises(ExciseError, match="cannot load"):
        command("tag", corpus(), tmp_path, "-c", "upos", "-o", tmp_path / "x")
