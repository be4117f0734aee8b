// What is wrong with how the page is laid out in a window as wide as the argument; the body of a function.
const [width] = arguments;
const TARGET_PX_MIN = 24;
const FIELD_PX_MIN = 16;
// Fractions of pixels, and the ink of letters that lean out of their line.
const SLACK_PX = 1;
const OVERLAP_PX_MIN = 4;
const found = [];
const name = (element) => {
    const id = element.closest("[id]");
    const own = element.tagName.toLowerCase();
    const text = element.textContent.trim().replace(/\s+/g, " ").slice(0, 40);
    return `${id && id !== element ? `#${id.id} ` : ""}${own}${element.id ? `#${element.id}` : ""} "${text}"`;
};
const isShown = (element) => element.checkVisibility({ visibilityProperty: true });
// For screen readers, or until it has the focus.
const isAside = (element) => element.closest(".hidden, .skip:not(:focus)") !== null;
const scrolls = (element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
const isInScroller = (element) => {
    for (let above = element; above; above = above.parentElement) if (scrolls(above)) return true;
    return false;
};
const elements = [...document.body.querySelectorAll("*")].filter((element) => isShown(element) && !isAside(element));

if (document.documentElement.scrollWidth > width) {
    found.push(`the page is ${document.documentElement.scrollWidth - width} px wider than the window`);
}

for (const element of elements) {
    const box = element.getBoundingClientRect();
    if (box.width > 0 && (box.left < -SLACK_PX || box.right > width + SLACK_PX) && !isInScroller(element)) {
        found.push(`${name(element)} reaches from ${box.left.toFixed()} to ${box.right.toFixed()} px`);
    }
}

// WCAG 2.2, 2.5.8; a link within a sentence is as high as its line.
for (const element of document.querySelectorAll("a[href], button, input, select, summary, textarea, [role=button]")) {
    if (!isShown(element) || isAside(element) || getComputedStyle(element).display === "inline") continue;
    const box = (element.closest("label") ?? element).getBoundingClientRect();
    if (box.width < TARGET_PX_MIN || box.height < TARGET_PX_MIN) {
        found.push(`${name(element)} is ${box.width.toFixed()} by ${box.height.toFixed()} px, too small to hit`);
    }
}

// iOS enlarges the whole page where somebody types or chooses in smaller letters, and leaves it so.
for (const element of document.querySelectorAll("input:not([type=range], [type=checkbox], [type=file]), select, textarea")) {
    const size = parseFloat(getComputedStyle(element).fontSize);
    if (isShown(element) && size < FIELD_PX_MIN) found.push(`${name(element)} has letters of ${size} px`);
}

const texts = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !isShown(element) || isAside(element) || element.closest("svg")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) if (box.width > 0) texts.push({ node, element, box });
}

for (const { element, box } of texts) {
    for (let above = element; above !== document.body; above = above.parentElement) {
        const style = getComputedStyle(above);
        if (style.display === "inline" || style.display === "contents") continue;
        const frame = above.getBoundingClientRect();
        const isOut = box.left < frame.left - SLACK_PX || box.right > frame.right + SLACK_PX;
        if (isOut && !scrolls(above)) found.push(`text of ${name(element)} leaves ${name(above)}`);
        const isHigher = box.top < frame.top - SLACK_PX || box.bottom > frame.bottom + SLACK_PX;
        if (isHigher && style.overflowY !== "visible" && !["auto", "scroll"].includes(style.overflowY)) {
            found.push(`text of ${name(element)} is cut off by ${name(above)}`);
        }
        break;
    }
}

texts.forEach((one, idx) => {
    for (const other of texts.slice(idx + 1)) {
        if (one.node === other.node || isInScroller(one.element) || isInScroller(other.element)) continue;
        const across = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
        const down = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
        if (across > OVERLAP_PX_MIN && down > OVERLAP_PX_MIN) {
            found.push(`${name(one.element)} lies over ${name(other.element)}`);
        }
    }
});

return [...new Set(found)];
