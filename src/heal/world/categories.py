"""The objects of the miniature world: the COCO categories that have an emoji."""

from __future__ import annotations

from dataclasses import dataclass

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 45, 40),
    "blue": (45, 90, 220),
    "green": (40, 160, 70),
    "yellow": (240, 205, 40),
    "purple": (140, 70, 190),
    "black": (40, 40, 44),
    "white": (245, 245, 245),
}


@dataclass(frozen=True)
class Category:
    """A COCO category with its names and its appearance."""

    name: str
    emoji: str
    plural: str
    synonyms: tuple[str, ...] = ()
    """Synonyms used in captions, all known to CHAIR."""
    tinted: bool = False
    """Whether it is drawn in different colours; there are no colour questions about the others."""
    large: bool = False


def _c(
    name: str, emoji: str, plural: str = "", *synonyms: str, tinted: bool = False, large: bool = False
) -> Category:
    return Category(name, emoji, plural or name + "s", synonyms, tinted, large)


CATEGORIES: tuple[Category, ...] = (
    _c("person", "🧍", "people", "man", "woman"),
    _c("bicycle", "🚲", "", "bike", tinted=True, large=True),
    _c("car", "🚗", tinted=True, large=True),
    _c("motorcycle", "🏍", tinted=True, large=True),
    _c("airplane", "✈", "", "plane", large=True),
    _c("bus", "🚌", "buses", tinted=True, large=True),
    _c("train", "🚆", large=True),
    _c("truck", "🚚", tinted=True, large=True),
    _c("boat", "⛵", large=True),
    _c("traffic light", "🚦"),
    _c("stop sign", "🛑"),
    _c("bird", "🐦"),
    _c("cat", "🐈"),
    _c("dog", "🐕", "", "puppy"),
    _c("horse", "🐎", large=True),
    _c("sheep", "🐑", "sheep"),
    _c("cow", "🐄", large=True),
    _c("elephant", "🐘", large=True),
    _c("bear", "🐻", large=True),
    _c("zebra", "🦓", large=True),
    _c("giraffe", "🦒", large=True),
    _c("backpack", "🎒", tinted=True),
    _c("umbrella", "☂", tinted=True),
    _c("handbag", "👜", "", "purse", tinted=True),
    _c("tie", "👔", tinted=True),
    _c("suitcase", "🧳", "", "luggage", tinted=True),
    _c("frisbee", "🥏", tinted=True),
    _c("skis", "🎿", "skis"),
    _c("sports ball", "⚽", "", "ball"),
    _c("kite", "🪁", tinted=True),
    _c("skateboard", "🛹", tinted=True),
    _c("tennis racket", "🎾", "", "racket"),
    _c("bottle", "🍾", tinted=True),
    _c("wine glass", "🍷", "wine glasses"),
    _c("cup", "☕", "", "mug", tinted=True),
    _c("fork", "🍴"),
    _c("knife", "🔪", "knives"),
    _c("spoon", "🥄"),
    _c("bowl", "🥣", tinted=True),
    _c("banana", "🍌"),
    _c("apple", "🍎"),
    _c("sandwich", "🥪", "sandwiches"),
    _c("orange", "🍊"),
    _c("broccoli", "🥦", "broccoli"),
    _c("carrot", "🥕"),
    _c("hot dog", "🌭"),
    _c("pizza", "🍕"),
    _c("donut", "🍩"),
    _c("cake", "🎂"),
    _c("chair", "🪑", tinted=True, large=True),
    _c("couch", "🛋", "couches", "sofa", tinted=True, large=True),
    _c("potted plant", "🪴", "", "plant"),
    _c("bed", "🛏", tinted=True, large=True),
    _c("toilet", "🚽"),
    _c("tv", "📺", "", "television", large=True),
    _c("laptop", "💻"),
    _c("mouse", "🖱", "mice"),
    _c("keyboard", "⌨"),
    _c("cell phone", "📱", "", "phone", tinted=True),
    _c("book", "📕", tinted=True),
    _c("clock", "⏰"),
    _c("vase", "🏺", tinted=True),
    _c("scissors", "✂", "scissors"),
    _c("teddy bear", "🧸"),
    _c("toothbrush", "🪥", "toothbrushes", tinted=True),
)
NAMES: tuple[str, ...] = tuple(c.name for c in CATEGORIES)
INDEX: dict[str, int] = {name: i for i, name in enumerate(NAMES)}
