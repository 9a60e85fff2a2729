// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace thinwire::train_gpt {

/// Colours that runs can have; more runs share them.
inline constexpr std::size_t kRunColors = 5;

/// Style sheet of report.html. Colours of runs: c0 ... as lines, b0 ... as
/// areas; they are told apart by people with any kind of colour vision.
inline constexpr const char* kReportStyle = R"css(
:root {
  --page: #f9f9f7; --card: #ffffff; --edge: #e4e3df;
  --ink: #1a1a19; --ink-2: #52514e; --ink-3: #898781;
  --grid: #ecebe7; --axis: #c3c2b7;
  --c0: #2a78d6; --c1: #eb6834; --c2: #1baf7a; --c3: #eda100; --c4: #4a3aa7;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0d0d0d; --card: #1a1a19; --edge: #2e2e2b;
    --ink: #f4f4f2; --ink-2: #c3c2b7; --ink-3: #898781;
    --grid: #2a2a28; --axis: #4a4a46;
    --c0: #3987e5; --c1: #d95926; --c2: #199e70; --c3: #c98500; --c4: #9085e9;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
main { max-width: 1240px; margin: 0 auto; padding: 40px 24px 56px; }
header { margin-bottom: 24px; }
h1 { margin: 0; font-size: 28px; line-height: 1.2; font-weight: 650; }
header p { margin: 6px 0 0; color: var(--ink-2); }
section, figure {
  background: var(--card); border: 1px solid var(--edge); border-radius: 10px;
}
section { padding: 8px 20px; overflow-x: auto; }
figure { margin: 0; padding: 18px 20px 12px; }
figcaption { font-size: 16px; font-weight: 600; }
.figures {
  display: grid; gap: 20px; margin: 20px 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr));
}
.legend {
  display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 2px 0 12px;
  color: var(--ink-2); font-size: 13px;
}
.kind { color: var(--ink-3); }
.swatch {
  display: inline-block; width: 10px; height: 10px; border-radius: 3px;
  margin-right: 7px;
}
table { width: 100%; border-collapse: collapse; }
th, td { padding: 8px 12px; text-align: left; white-space: nowrap; }
th:first-child, td:first-child { padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
th { color: var(--ink-2); font-size: 13px; font-weight: 500; }
thead tr:last-child th, thead th[rowspan] {
  border-bottom: 1px solid var(--axis);
}
th.group { text-align: center; color: var(--ink-3); padding-bottom: 0; }
tr:nth-last-child(n+2) td { border-bottom: 1px solid var(--grid); }
.number { text-align: right; font-variant-numeric: tabular-nums; }
footer { margin-top: 20px; color: var(--ink-3); font-size: 13px; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; }
.tick { fill: var(--ink-3); font-variant-numeric: tabular-nums; }
.title { fill: var(--ink-2); }
.grid { stroke: var(--grid); }
.axis { stroke: var(--axis); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.faint { stroke-width: 1; opacity: 0.22; }
.dot { stroke: var(--card); stroke-width: 1.5; }
.c0 { stroke: var(--c0); } .dot.c0 { fill: var(--c0); stroke: var(--card); }
.c1 { stroke: var(--c1); } .dot.c1 { fill: var(--c1); stroke: var(--card); }
.c2 { stroke: var(--c2); } .dot.c2 { fill: var(--c2); stroke: var(--card); }
.c3 { stroke: var(--c3); } .dot.c3 { fill: var(--c3); stroke: var(--card); }
.c4 { stroke: var(--c4); } .dot.c4 { fill: var(--c4); stroke: var(--card); }
.strip.c0 { fill: var(--c0); } .strip.c1 { fill: var(--c1); }
.strip.c2 { fill: var(--c2); } .strip.c3 { fill: var(--c3); }
.strip.c4 { fill: var(--c4); } svg .strip { stroke: none; }
.b0 { background: var(--c0); } .b1 { background: var(--c1); }
.b2 { background: var(--c2); } .b3 { background: var(--c3); }
.b4 { background: var(--c4); }
@media print { body { background: none; } .figures { break-inside: avoid; } }
)css";

}  // namespace thinwire::train_gpt
