"""The report's style sheet: one set of names for colours, given twice, and black on white for paper."""

from __future__ import annotations

STYLE = """
:root{--paper:#fcfcfa;--ink:#22272e;--quiet:#5f666d;--rule:#d9d9d3;--good:#0064a8;--offered:#5b626a;--refused:#9a5b16;
--lost:#b5302a;--trough:#e6e6e0}
@media (prefers-color-scheme:dark){:root{--paper:#1d2126;--ink:#e6e8ea;--quiet:#a5acb4;--rule:#3a4149;--good:#56b4e9;
--offered:#b9bfc6;--refused:#e0a04a;--lost:#f08a80;--trough:#333a42}}
@media print{:root{--paper:#fff;--ink:#000;--quiet:#444;--rule:#bbb;--good:#0064a8;--offered:#5b626a;--refused:#9a5b16;
--lost:#b5302a;--trough:#e6e6e6}section,table{break-inside:avoid}}
body{background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif;margin:0}
main{max-width:72rem;margin:0 auto;padding:1rem 1.25rem 3rem}
h1{font-size:1.7rem;margin:.6rem 0 .2rem}h2{font-size:1.2rem;margin:2rem 0 .5rem}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
.lead{max-width:46rem}ul{max-width:46rem;padding-left:1.2rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:0 2rem}
.side{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));gap:1rem}
figure{margin:0;max-width:44rem}figcaption{color:var(--quiet);font-size:.85rem}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;margin:.3rem 0 1rem}
th,td{padding:.25rem .7rem .25rem 0;text-align:right;border-bottom:1px solid var(--rule);vertical-align:top;
font-variant-numeric:tabular-nums}
th{font-weight:600}tbody th,thead th:first-child,td:first-child{text-align:left}
caption{text-align:left;color:var(--quiet)}
summary{cursor:pointer}summary:focus-visible{outline:2px solid var(--good)}
svg{width:100%;height:auto;display:block}svg text{fill:var(--ink);font:11px system-ui,sans-serif}
svg .quiet{fill:var(--quiet)}
svg .small{font-size:10px;paint-order:stroke;stroke:var(--paper);stroke-width:3px}
svg .end{text-anchor:end}svg .middle{text-anchor:middle}
.grid{stroke:var(--rule);stroke-width:1}.level{stroke:var(--ink);stroke-width:1;stroke-dasharray:2 3}
.moment{stroke:var(--quiet);stroke-width:1;stroke-dasharray:5 4}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}.dot{stroke:none}
.good{stroke:var(--good)}.offered{stroke:var(--offered);stroke-dasharray:6 3}
.refused{stroke:var(--refused);stroke-dasharray:2 2}.lost{stroke:var(--lost);stroke-dasharray:8 3 2 3}
.dot.good{fill:var(--good)}.dot.offered{fill:var(--offered)}.dot.refused{fill:var(--refused)}.dot.lost{fill:var(--lost)}
.trough{fill:var(--trough)}.bar{fill:var(--good)}
""".strip()
