// Starts the page module. All else is Rust.
import init from "{{asset:page.js}}";

init({ module_or_path: "{{asset:page_bg.wasm}}" }).catch((error) => {
  const sentence = document.getElementById("activity");
  sentence.dataset.doing = "broken";
  sentence.textContent = `This page could not start: ${error.message ?? error}. Try to reload it.`;
});
