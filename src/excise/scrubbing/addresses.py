"""Names of sites: the path of a module, `@2` for its second visit in a forward pass, `:in` where its input is meant."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Address", "address"]


@dataclass(frozen=True)
class Address:
    """A tensor of a forward pass: what a module gives out, or is given, at one of its visits.

    >>> address("layer.norm@2:in")
    Address(path='layer.norm', visit=2, inside=True)
    >>> str(address("layer.norm@2:in")), str(Address("layer.norm"))
    ('layer.norm@2:in', 'layer.norm')
    """

    path: str
    visit: int = 1
    inside: bool = False

    def __str__(self) -> str:
        return self.path + (f"@{self.visit}" if self.visit > 1 else "") + (":in" if self.inside else "")


def address(site: str) -> Address:
    """Read the name of a site."""
    plain = site.removesuffix(":in")
    path, _, visit = plain.rpartition("@")
    if path and visit.isdigit() and int(visit) >= 1:
        return Address(path, int(visit), plain != site)
    return Address(plain, 1, plain != site)
