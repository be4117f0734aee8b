// Starts the page module. All else is Rust. Until the module runs, this script records clicks on the button
// for it, and answers them.
const toggle = document.getElementById("toggle");
const sentence = document.getElementById("activity");

// The front page lists the runs.
const isFront = location.pathname === "/runs/";
document.getElementById("front").hidden = !isFront;
for (const id of ["main", "live"]) document.getElementById(id).hidden = isFront;
if (isFront) document.querySelector(".skip").hash = "#front";

const asking = sentence.textContent;
let isWanted = false;
const note = () => {
  isWanted = !isWanted;
  toggle.dataset.wanted = isWanted;
  toggle.textContent = isWanted ? "Stop" : "Start contributing";
  sentence.textContent = isWanted ? "This tab begins as soon as the page is here…" : asking;
};
toggle.addEventListener("click", note);
performance.mark("barnraise:button");

async function start() {
  const page = await import("{{asset:page.js}}");
  await page.default({ module_or_path: "{{asset:page_bg.wasm}}" });
  toggle.removeEventListener("click", note);
  performance.mark("barnraise:page");
}

start().catch((error) => {
  toggle.removeEventListener("click", note);
  sentence.dataset.doing = "broken";
  const trouble = `This page could not start: ${error.message ?? error}. Try to reload it.`;
  for (const shown of [sentence, document.getElementById("runs-note")]) shown.textContent = trouble;
});
