"""Write figures of README, docs/evidence.md, lattice.md, losses.md, skeletons.md from the files in benchmarks/results;
`--check` says if they agree.

python benchmarks/readme.py [--check]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
START, END = "<!-- figures -->\n", "<!-- /figures -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check, agree = parser.parse_args().check, True
    for page, lines in PAGES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        wanted = with_figures(text, lines())
        agree = agree and text == wanted
        if not check:
            (ROOT / page).write_text(wanted, encoding="utf-8")
    return int(check and not agree)


def with_figures(text: str, lines: list[str]) -> str:
    """A page's text with `lines` between the two marks."""
    before, rest = text.split(START)
    _, after = rest.split(END)
    return before + START + "\n".join(lines) + "\n" + END + after


def headline() -> list[str]:
    """README's table: five figures, what speaks against each, and the scripts that make them."""
    shares, memory, ocean, cost = map(_read, ("throughput.json", "memory.json", "ocean_tracks.json", "cost.json"))
    best = max(shares, key=lambda row: float(row["share"]))
    least = min(shares, key=lambda row: float(row["worst"]))
    fit = memory["fits"][0]
    field = min(ocean["table"], key=lambda row: float(row["orff"]["rmse"]))
    ours, stacked = cost["divergence-free, p = 3"], cost["textbook"]
    beijing = [row for row in _read("uncertainty.json")["rows"] if row["data"] == "Beijing" and row["split"] == 0]
    forest = next(row for row in beijing if row["model"] == "HistGradientBoostingRegressor")
    largest = max(beijing, key=lambda row: int(row["m"]))
    exact = next(row for row in beijing if row["model"] == "exact GP")
    return [
        "| what | figure | what speaks against it | made by |",
        "|---|---|---|---|",
        f"| speed of a fit from disk over that of bare BLAS `syrk` | {best['share']:.2f} (d = {best['d']}, "
        f"m = {best['m']}) | {least['worst']:.2f} in the worst run of all shapes (d = {least['d']}, "
        f"m = {least['m']}) | `benchmarks/throughput.py` |",
        f"| peak memory when data are {fit['data_over_worker_limit']:.0f} times the workers' memory, over the plan; "
        f"growth when rows double | {fit['share']:.2f}; {100 * memory['growth_when_doubled']:+.1f}% | the plan asks "
        f"for {1 / fit['share']:.1f} times what is used | `benchmarks/memory.py` |",
        f"| time of a pass with 3 coupled outputs over that with one | {ours['median']:.2f} (textbook's features: "
        f"{stacked['median']:.0f}) | {ours['least']:.2f} to {ours['most']:.2f} over the repeats "
        "| `benchmarks/cost.py` |",
        f"| ocean drifters, error on held-out tracks (m/s), of the exact kernel | {field['orff']['rmse']:.4f}, "
        f'{field["exact"]["rmse"]:.4f} | the best kernel is "{field["kernel"]}"; the exact one is better '
        "| `benchmarks/ocean.py` |",
        f"| Beijing's air, R2 on held-out rows, of an exact GP on {exact['train']:,} rows | {largest['r2']:.3f}, "
        f"{exact['r2']:.3f} | gradient boosting: {forest['r2']:.3f} | `benchmarks/uncertainty.py` |",
    ]


def dependent_lines(found: Sequence[dict[str, Any]]) -> list[str]:
    """What conformal bands of 90% hold where rows depend on each other, by what they are tried on."""
    names = {
        "walks": "rows of new walks, by the number of walks in the fit",
        "tracks": "rows of other GLAD tracks, by the number of tracks in the fit",
        "one walk, between": "blocks left out of one walk, by its rows",
        "one walk, after": "rows after one walk (of which nothing is promised), by its rows",
    }
    lines = []
    for data, what in names.items():
        cells = [
            f"{one['groups']:,}: " + ("refused" if one["mean"] is None else f"{_percent(one)}")
            for one in found
            if one["data"] == data and one["level"] == 0.9
        ]
        lines.append(
            f"| conformal bands of 90%, {what}: share (%) inside, mean of 20 fits (worst fit; tenth percentile of "
            f"single walks, tracks or blocks) | {'; '.join(cells)} | `benchmarks/dependent.py` |"
        )
    return lines


def _percent(one: dict[str, Any]) -> str:
    return f"{100 * one['mean']:.0f} ({100 * one['worst']:.0f}; {100 * one['tenth']:.0f})"


def figures() -> list[str]:
    """The lines of the table; a file that is not there has no line."""
    lines = ["| what | figure | made by |", "|---|---|---|"]
    for share in _read("throughput.json") or []:
        lines.append(
            f"| fit from Zarr, {share['workers']} workers, d = {share['d']}, m = {share['m']}, {share['sampler']}: "
            f"share of bare `syrk`, median of {share['repeats']} (worst); share of the workers' time inside `syrk`, "
            f"in features | {share['share']:.2f} ({share['worst']:.2f}); {share['inside_syrk']:.2f}, "
            f"{share['in_features']:.2f} | `benchmarks/throughput.py` |"
        )
    if jobs := _read("plan_seconds.json"):
        ratios = sorted((one["ratio"], name) for name, one in jobs.items())
        (low, least), (high, most) = ratios[0], ratios[-1]
        within = sum(1 / 1.5 <= ratio <= 1.5 for ratio, _ in ratios)
        lines.append(
            f"| processor seconds of a fit over those that `dorff plan` says, {len(ratios)} kinds of job: within 1.5; "
            f"median, least and most | {within}; {ratios[len(ratios) // 2][0]:.2f}, {low:.2f} ({least}), {high:.2f} "
            f"({most}) | `benchmarks/plan_seconds.py` |"
        )
    if speed := _read("feature_speed.json"):
        lines += speed_lines(speed)
    if mnist := _read("mnist.json"):
        for fit in mnist["fits"]:
            lines.append(
                f"| MNIST, one-hot targets, m = {fit['m']}, {fit['sampler']}: test accuracy, peak memory of the fit "
                f"| {fit['test_accuracy']:.4f}, {fit['peak_bytes'] / 2**30:.1f} GiB | `benchmarks/mnist.py` |"
            )
    if errors := _read("kernel_approximation.json"):
        lines += error_lines(errors)
    if memory := _read("memory.json"):
        first = memory["fits"][0]
        lines.append(
            f"| data {first['data_over_worker_limit']:.0f} times the workers' memory: peak over plan; growth "
            f"when rows double | {first['share']:.2f}; {100 * memory['growth_when_doubled']:+.1f}% |"
            " `benchmarks/memory.py` |"
        )
    for name, hold in (("ocean_tracks.json", "tracks"), ("ocean.json", "rows")):
        if ocean := _read(name):
            best = min(ocean["table"], key=lambda row: float(row["orff"]["rmse"]))
            held = "whole tracks" if hold == "tracks" else "single rows, whose neighbours are in the fit"
            lines.append(
                f"| GLAD drifters, 5-fold RMSE (m/s) of {held}, best kernel ({best['kernel']}): dorff, exact "
                f"| {best['orff']['rmse']:.4f}, {best['exact']['rmse']:.4f} | `benchmarks/ocean.py --hold {hold}` |"
            )
    if dependent := _read("dependent.json"):
        lines += dependent_lines(dependent)
    if magnetic := _read("magnetic.json"):
        cells = [
            f"{name} {fit['r2_mean']:.3f} ({min(fit['r2']):.3f}; {fit['gcv']['r2']:.2f})"
            for name, fit in (
                ("independent outputs", magnetic["independent"]),
                ("curl-free, measure trace (the default)", magnetic["curl_free_trace"]),
                ("curl-free, measure unbounded", magnetic["curl_free"]),
            )
        ]
        lines.append(
            "| magnetic field, trials 4-5 from 1-3, D = 512, ridge by leaving out trials, mean of 5 seeds: R2 (of the "
            f"worst seed; with the ridge that GCV chooses) | {', '.join(cells)} | `benchmarks/magnetic.py` |"
        )
    if minh := _read("minh_table1.json"):
        lines += table1_lines(minh)
    if minh := _read("minh_table2.json"):
        lines += minh_lines(minh)
    if cost := _read("cost.json"):
        ours, stacked = cost["divergence-free, p = 3"], cost["textbook"]
        lines.append(
            f"| pass over the rows, p = 3 divergence-free over p = 1 scalar, m = {cost['m']}, n = {cost['rows']}; the "
            f"textbook's stacked features over the same | {ours['median']:.2f}; {stacked['median']:.0f} "
            "| `benchmarks/cost.py` |"
        )
    lines += brault_lines()
    if defaults := _read("defaults.json"):
        lines.append(defaults_line(defaults))
    if criteria := _read("criteria.json"):
        lines.append(criteria_line(criteria["tables"]))
    if structure := _read("structure.json"):
        lines += structure_lines(structure)
    return lines


def table1_lines(minh: dict[str, Any]) -> list[str]:
    """Minh's Table 1 by both samplers, and by every way to scale the inputs, which the paper leaves open."""
    lines, main = [], minh["main_reading"]
    rows = {tuple(row[key] for key in ("kernel", "measure", "D", "sampler")): row for row in minh["rows"]
            if row["reading"] == main}  # fmt: skip
    for kernel in dict.fromkeys(key[0] for key in rows):
        cells = []
        for _, measure, D, sampler in rows:
            if (_, sampler) == (kernel, "iid"):
                mine, theirs = (rows[kernel, measure, D, name] for name in ("orthogonal", "iid"))
                paper = f" ({mine['paper']})" if mine["paper"] else ""
                cells.append(f"{measure} {D}: {mine['ours']:.3f}, {theirs['ours']:.3f}{paper}")
        lines.append(
            f"| Minh 2016, Table 1, {kernel}, inputs scaled by {main}: relative error of the gram at D, of orthogonal "
            f"and of iid frequencies (the paper's, iid) | {'; '.join(cells)} | `benchmarks/minh_table1.py` |"
        )
    cells = [
        f"{line['reading']}, {line['sampler']} {line['ours_over_paper']:.2f}, at most {line['largest_ratio']:.2f}"
        for line in minh["readings"]
    ]
    lines.append(
        f"| the same: error over the paper's, mean of {minh['readings'][0]['cells']} cells, by how inputs are scaled, "
        f"which the paper leaves open | {'; '.join(cells)} | `benchmarks/minh_table1.py` |"
    )
    return lines


def brault_lines() -> list[str]:
    """Brault's Figures 1 to 3, and many rows."""
    lines = []
    if errors := _read("brault_kernel_error.json"):
        for method, words in (("dorff", "orthogonal frequencies, trace measure"), ("paper", "iid, unbounded measure")):
            cells = [
                f"{name} "
                + " and ".join(
                    f"{fit['slope']:.3f} ({fit['low']:.3f} to {fit['high']:.3f})" for fit in (at, at["slope_all"])
                )
                for name, at in errors["slopes"][method].items()
            ]
            lines.append(
                f"| Brault 2016, Figure 1, {words}: power of D in the largest spectral error on [-1, 1]^4, joint 95% "
                f"intervals, from D >= {errors['slope_from']} and from all D >= {errors['variance']['D'][0]} "
                f"| {', '.join(cells)} | `benchmarks/brault_kernel_error.py` |"
            )
    if mnist := _read("brault_mnist.json"):
        largest = max(row["N"] for row in mnist["rows"])
        ours, exact = (
            next(row for row in mnist["rows"] if (row["model"], row["N"]) == (model, largest))
            for model in ("ORFF", "exact")
        )
        lines.append(
            f"| Brault 2016, Figure 2: MNIST, {largest} rows, simplex coding, test error of D = {ours['D']}, of the "
            f"exact kernel; time of an exact fit over the other | {ours['error']:.4f}, {exact['error']:.4f}; "
            f"{exact['seconds'] / ours['seconds']:.0f} | `benchmarks/brault_mnist.py` |"
        )
    if curl := _read("brault_curl5.json"):
        fits = {(row["model"], row["kernel"], row["N"], row["D"]): row["r2"] for row in curl["rows"]}
        cells = [
            f"N = {N}: {fits['ORFF', 'curl-free', N, 1000]:.2f}, {fits['ORFF', 'independent', N, 1000]:.2f}"
            for N in (1000, 4000, 16000, 100000)
        ]
        lines.append(
            "| Brault 2016, Figure 3: 5-d curl-free field, D = 1000, R2 of curl-free, of independent outputs "
            f"| {'; '.join(cells)} | `benchmarks/brault_curl5.py` |"
        )
    if many := _read("brault_many_rows.json"):
        best = max((row for row in many["rows"] if row["model"] == "ORFF"), key=lambda row: (row["N"], row["D"]))
        exact = max((row for row in many["rows"] if row["model"] == "exact" and row["error"]), key=lambda row: row["N"])
        lines.append(
            f"| R^20 to R^4: mean squared error of D = {best['D']} at N = {best['N']}, of the exact kernel at "
            f"N = {exact['N']}; time of the one over the other | {best['error']:.3f}, {exact['error']:.3f}; "
            f"{best['seconds'] / exact['seconds']:.2f} | `benchmarks/brault_many_rows.py` |"
        )
    return lines + one_pass_lines()


def one_pass_lines() -> list[str]:
    """What follows from one pass: the grid, bands, conditioning, streaming, re-targeting."""
    lines = []
    if grid := _read("tune_grid.json"):
        check, run = grid["runs"]
        shown = f"{run['ratio']:.2f}; {run['reads']:g}; {check['error']:.0e}"
        lines.append(
            f"| `dorff tune`, {run['rows']:,} rows, m = {run['m']}, {run['trials']} trials of "
            f"{run['folds']} folds: time of the grid over that of two more passes; reads of the "
            f"data; worst error of a score, at {check['rows']:,} rows | {shown} | `benchmarks/tune_grid.py` |"
        )
    if bands := _read("uncertainty.json"):
        lines += band_lines(bands)
    if conditioning := _read("conditioning.json"):
        errors = conditioning["worst_error"]
        lines.append(
            f"| condition numbers 1e4 to 1e18, {conditioning['rows']} fits: silent losses; worst error of the fitted "
            f"values by the automatic ladder, by Cholesky | {conditioning['silent_losses']}; {errors['ladder']:.0e}, "
            f"{errors['cholesky']:.0e} | `benchmarks/conditioning.py` |"
        )
    if streaming := _read("streaming.json"):
        found, solved = streaming["streaming"], streaming["direct"]
        lines.append(
            f"| streaming, m = {found['m']:,}, d = {streaming['d']}, {streaming['rows']:,} rows, ridge "
            f"{streaming['ridge']:g}: passes (told by `dorff plan`); test error, of the direct solve at m = "
            f"{solved['m']:,}; peak of a worker; time of a row in the Gram route over one in a pass | "
            f"{found['passes']} ({found['expected_passes']}); "
            f"{found['error']:.3f}, {solved['error']:.3f}; "
            f"{found['worker_peak_bytes'] / 2**20:.0f} MiB; {streaming['gram_over_pass']:.0f} "
            "| `benchmarks/streaming.py` |"
        )
    if retarget := _read("retarget.json"):
        cells = [
            f"{name} {one['one'][0]:.2f}-{one['one'][1]:.2f} ({one['two'][0]:.2f}-{one['two'][1]:.2f})"
            for name, one in retarget["reach"].items()
            if "gaussian" in name and "unbounded" not in name
        ]
        worst = max(one["worst"]["ratio"] for one in retarget["worst"].values())
        lines.append(
            "| re-targeting: length-scales reached from one (from a mixture of 2/3 and 5/3 of it); worst error "
            f"accepted over that of fresh features | {', '.join(cells)}; {worst:.2f} | `benchmarks/retarget.py` |"
        )
    return [*lines, *manifold_lines(), *fault_lines(), *cluster_lines()]


def manifold_lines() -> list[str]:
    """Few labels; several views; manifold terms out of core and what they cost."""
    lines = []
    if few := _read("semi_supervised.json"):
        for key in dict.fromkeys((line["data"], line["rows"]) for line in few["summary"]):
            mine = [line for line in few["summary"] if (line["data"], line["rows"]) == key]
            methods = list(dict.fromkeys(line["method"] for line in mine))
            cells = [
                f"{labels} " + " / ".join(f"{line['accuracy']:.3f}" for line in mine if line["labels"] == labels)
                for labels in dict.fromkeys(line["labels"] for line in mine)
            ]
            lines.append(
                f"| {key[0]}, labels as said, mean accuracy of {mine[0]['splits']} splits on {key[1]} rows: "
                f"{' / '.join(methods)} | {', '.join(cells)} | `benchmarks/semi_supervised.py` |"
            )
    if views := _read("multi_view.json"):
        for key in dict.fromkeys((line["data"], line["labels"]) for line in views["summary"]):
            mine = [line for line in views["summary"] if (line["data"], line["labels"]) == key]
            cells = [f"{line['model']} of {line['asked']} {line['score']:.3f}" for line in mine]
            lines.append(
                f"| {key[0]} in views, {key[1]} labels, test {'R2' if key[0] == 'Beijing' else 'accuracy'}, mean of "
                f"{mine[0]['splits']} splits, by model and the views that it is given | {', '.join(cells)} "
                "| `benchmarks/multi_view.py` |"
            )
    if scale := _read("manifold_scale.json"):
        runs = {name: scale[name] for name in ("one", "two", "kill") if name in scale}
        shares = ", ".join(f"{run['peak_bytes'] / run['plan_peak_bytes']:.2f}" for run in runs.values())
        same = {True: "yes", False: "no", None: "not run"}[scale["bitwise_the_same"]]
        lines.append(
            f"| {scale['rows']:,} rows of 784 pixels, 1,000 labelled, nearest neighbours across leaves, "
            f"m = {scale['features']:,}: the same bits by one worker, by two, and killed in each phase; peak over "
            f"plan of each | {same}; {shares} | `benchmarks/manifold_scale.py` |"
        )
        forms = scale.get("forms", {})
        cells = [
            f"{name} {one['over_S']:.2f}" + (f" (bound {one['bound']:.2f})" if one["bound"] else "")
            for name, one in forms.items()
            if name != "S"
        ]
        if cells:
            lines.append(
                f"| the same: core-seconds of a row of T over one of S, by form | {', '.join(cells)} "
                "| `benchmarks/manifold_scale.py` |"
            )
    if cost := _read("manifold_cost.json"):
        for one in cost["shapes"]:
            cells = [f"{name} {form['ratio']:.2f}" for name, form in one["forms"].items() if name != "S"]
            lines.append(
                f"| a row of T over one of S, m = {one['m']}, {one['neighbours']} neighbours, graph given (bound of "
                f"the edge form {one['bound']:.2f}); making a local graph, d = {one['d']} | {', '.join(cells)}; "
                f"{one['graph_over_S']:.2f} | `benchmarks/manifold_cost.py` |"
            )
    return lines


def fault_lines() -> list[str]:
    """What was injected and what came of it; what watching over it all costs."""
    lines = []
    if faults := _read("faults.json"):
        totals, tests = faults["totals"], faults["tests"]
        failed = tests["failed"] + tests.get("hung", [])
        lines.append(
            f"| {totals['injected']} faults injected by {len(tests['passed']) + len(failed)} tests: tests "
            f"that failed; rows lost; rows counted twice | {len(failed)}; {totals['rows_lost']}; "
            f"{totals['rows_twice']} | `benchmarks/fault_table.py` |"
        )
    if soak := _read("soak.json"):
        lines.append(
            f"| soak of {soak['seconds'] / 60:.0f} minutes, {soak['cycles']} cycles, {soak['faults']} faults: hangs; "
            f"results not the same to the bit; rows lost; rows counted twice | {soak['hangs']}; {soak['mismatches']}; "
            f"{soak['rows_lost']}; {soak['rows_twice']} | `benchmarks/soak.py` |"
        )
    if flips := _read("bitflips.json"):
        lines.append(
            f"| {flips['flips']} bits flipped in data, sums, receipts and models: unnoticed "
            f"| {flips['undetected']} | `benchmarks/bitflips.py` |"
        )
    if scale := _read("scale.json"):
        dask = scale["dask"]
        lines.append(
            f"| {scale['rows']:,} rows in {scale['store']['chunk_files']:,} files, m = {scale['m']:,}, leaves faked: "
            "tasks; bytes of all tasks; the driver's peak memory "
            f"| {dask['tasks']:,}; {dask['task_bytes'] / 2**20:.1f} MiB; {dask['driver_peak_bytes'] / 2**20:.0f} MiB "
            "| `benchmarks/scale.py` |"
        )
    if overhead := _read("leaf_overhead.json"):
        cells = [f"{row['d']}, {row['m']:,}: {100 * row['share']:.1f}%" for row in overhead["leaves"]]
        lines.append(
            "| share of a leaf's time that goes to its receipt, sums' file and checks, at d, m "
            f"| {'; '.join(cells)} | `benchmarks/leaf_overhead.py` |"
        )
    return lines


def cluster_lines() -> list[str]:
    """The same job everywhere: bits, seconds, faults; and how many workers one scheduler serves."""
    lines = []
    if everywhere := _read("everywhere.json"):
        names = ", ".join(row["place"] for row in everywhere["places"])
        leaves = everywhere["places"][0]["leaves_computed"]
        lines.append(
            f"| one job of {leaves} leaves in {len(everywhere['places'])} kinds of place ({names}): models of "
            f"other bits | {len({row['digest'] for row in everywhere['places']}) - 1} | `benchmarks/everywhere.py` |"
        )
    if objects := _read("objects.json"):
        lines.append(
            f"| a leaf whose rows and state are in a bucket (Ceph's gateway, on the same cores) over one in folders: "
            f"speed, median of {objects['repeats']} (worst) | {objects['share']:.2f} ({objects['worst']:.2f}) "
            "| `benchmarks/objects.py` |"
        )
    if clusters := _read("clusters.json"):
        for fit in clusters["fits"]:
            cells = [f"{name} {row['ratio']:.2f} ({row['worst_ratio']:.2f})" for name, row in fit["clusters"].items()]
            lines.append(
                f"| a whole fit of {fit['leaves']} leaves by two workers, start and end too: seconds over those by "
                f"local workers, median (worst) | {', '.join(cells)} | `benchmarks/clusters.py` |"
            )
    if faults := _read("cluster_faults.json"):
        totals, tests = faults["totals"], faults["tests"]
        lines.append(
            f"| {totals['injected']} faults of Slurm, MPI, containers, Kubernetes' stand-in, buckets and shared file "
            f"systems by {sum(map(len, tests.values()))} tests: tests that failed or hung; rows lost; rows counted "
            f"twice; what was left running | {len(tests['failed']) + len(tests['hung'])}; {totals['rows_lost']}; "
            f"{totals['rows_twice']}; {totals['orphans']} | `benchmarks/fault_table.py --clusters` |"
        )
    if many := _read("many_workers.json"):
        for run in many["runs"]:
            lost = f", {run['lost_workers']} of them lost on the way" if run["churn"] else ""
            lines.append(
                f"| {run['workers']:,} workers in one process{lost}, leaves of {many['leaf_s']:g} s that only wait: "
                "share of the time that they compute; the scheduler's and driver's processor time a task; shortest "
                f"leaf that keeps them busy; leaves begun twice | {run['efficiency']:.2f}; "
                f"{1000 * run['overhead_s']:.1f} ms; {run['shortest_leaf_s']:.1f} s; {run['again']} "
                "| `benchmarks/many_workers.py` |"
            )
    return lines


def band_lines(bands: dict[str, Any]) -> list[str]:
    """R2 of every model, and coverage, means over the splits that every model has."""

    def mean(rows: list[dict[str, Any]], key: str) -> float:
        return float(sum(row[key] for row in rows) / len(rows))

    lines = []
    for data in dict.fromkeys(row["data"] for row in bands["rows"]):
        mine = [row for row in bands["rows"] if row["data"] == data]
        splits = set.intersection(
            *({row["split"] for row in mine if row["m"] == m} for m in {row["m"] for row in mine})
        )
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in (row for row in mine if row["split"] in splits):
            groups.setdefault(f"{row['model']}, m = {row['m']}" if row["m"] > 0 else row["model"], []).append(row)
        worst = {name: f" ({min(row['r2'] for row in rows):.4f})" * (len(rows) > 1) for name, rows in groups.items()}
        scores = ", ".join(f"{name} {mean(rows, 'r2'):.4f}{worst[name]}" for name, rows in groups.items())
        made = "`benchmarks/uncertainty.py` |"
        how = "R2 of one split" if len(splits) == 1 else f"mean R2 of {len(splits)} splits (worst)"
        lines.append(f"| {data}, a random fifth held out, tuned length-scales: {how} | {scores} | {made}")
        cells = []
        for name, rows in groups.items():
            if name.startswith("dorff"):
                kinds = (
                    "/".join(f"{100 * mean(rows, f'{kind}_{level}'):.1f}" for level in (50, 80, 95))
                    for kind in ("plain", "conformal")
                )
                cells.append(f"{name.split(', ')[1]} {' and '.join(kinds)}")
        error = "/".join(f"{100 * value:.1f}" for value in bands["error"][data].values())
        lines.append(
            f"| {data}: share (%) of test values inside bands of 50/80/95%, as they come and conformal (two standard "
            f"errors: {error}) | {'; '.join(cells)} | {made}"
        )
    return lines


def defaults_line(tables: dict[str, Any]) -> str:
    """The losses of jobs and estimators without options, the worst named; and how often others do better."""
    ours = {name: min(one["bare"]["score"], one["job"]["score"]) for name, one in tables.items()}
    lost = {name: one["grid"]["score"] - ours[name] for name, one in tables.items()}
    worst, middle = max(lost, key=lost.__getitem__), sorted(lost.values())[len(lost) // 2]
    below = [name for name, one in tables.items() if ours[name] < one["mean"]["score"]]
    wins = []
    for rival in dict.fromkeys(name for one in tables.values() for name in one):
        scores = [(one[rival]["score"], ours[name]) for name, one in tables.items() if rival in one]
        if rival not in ("bare", "job", "grid", "mean"):
            wins.append(f"{rival} {sum(other > own + 0.01 for other, own in scores)} of {len(scores)}")
    return (
        f"| jobs of three lines and bare estimators, on {len(tables)} tables: held-out R2 or accuracy below that of "
        "the best of a grid, median, worst; tables where they are below the mean or the most frequent class; those "
        f"where others are better by more than .01 | {middle:.3f}, {lost[worst]:.3f} ({worst}); "
        f"{', '.join(below) or 'none'}; {', '.join(wins)} | `benchmarks/defaults.py` |"
    )


def criteria_line(tables: dict[str, Any]) -> str:
    """How far each criterion's choice is below the best of all of them."""
    best = {name: max(each["mean"] for each in one.values()) for name, one in tables.items()}
    cells = []
    for rule in dict.fromkeys(rule for one in tables.values() for rule in one):
        lost = {name: best[name] - one[rule]["mean"] for name, one in tables.items() if rule in one}
        worst = max(lost, key=lost.__getitem__)
        within = sum(value <= 0.02 for value in lost.values())
        cells.append(f"{rule} {within} of {len(lost)}, {lost[worst]:.2f} ({worst})")
    return (
        f"| what criteria choose on {len(tables)} tables: those on which it is within .02 of the best criterion by R2 "
        f"on outer folds; the worst loss | {'; '.join(cells)} | `benchmarks/criteria.py` |"
    )


def structure_lines(structure: dict[str, Any]) -> list[str]:
    """R2 of the identity, and what other output matrices add."""
    lines = []
    for data in dict.fromkeys(line["data"] for line in structure["summary"]):
        mine = {line["output"]: line for line in structure["summary"] if line["data"] == data}
        cells = [
            f"{name} {line['difference']:+.4f} +- {line['difference_interval']:.4f}"
            for name, line in mine.items()
            if name != "identity"
        ]
        lines.append(
            f"| {data}, six targets, 5-fold R2: independent outputs; what an output matrix adds (95%) "
            f"| {mine['identity']['r2']:.3f}; {', '.join(cells)} | `benchmarks/structure.py` |"
        )
    return lines


def speed_lines(speed: dict[str, Any]) -> list[str]:
    """One thread: Hadamard and sin/cos loops, whole maps at m = 8192, growth with d."""
    made = "`benchmarks/feature_speed.py` |"
    loops = ", ".join(f"{row['ratio']:.0f}x at n = {row['n']}" for row in speed["hadamard"])
    lines = [
        f"| Walsh-Hadamard against a dense product; cos and sin against NumPy's; one thread | {loops}; "
        f"{speed['pairs']['ratio']:.0f}x | {made}"
    ]
    for d in sorted({row["d"] for row in speed["maps"]}):
        maps = ", ".join(f"{row['map']} {row['ratio']:.0f}x" for row in speed["maps"] if row["d"] == d)
        lines.append(f"| features, d = {d}, m = 8192, against scikit-learn's RBFSampler, one thread | {maps} | {made}")
    powers = ", ".join(f"{name} {power:.2f}" for name, power in speed["exponents"].items())
    lines.append(f"| power of d in the time of a row, d = 1024 to 8192, m = 2 d | {powers} | {made}")
    return lines


def error_lines(errors: dict[str, Any]) -> list[str]:
    """Relative errors of the kernel at the largest n, quadrature of degree (3,3) against all other maps."""
    lines = []
    for kernel in ("gaussian", "arc_cosine_0", "arc_cosine_1"):
        cells, ratios = [], []
        for panel in errors["panels"]:
            if panel["kernel"] != kernel:
                continue
            found = {name: one["mean"] for name, one in panel["errors"].items()}
            others = {name: error for name, error in found.items() if not name.startswith("B") and "plain" not in name}
            best, worst = (choose(others, key=others.__getitem__) for choose in (min, max))
            ratios.append((found["B"] / others[best], f"{panel['dataset']}, {panel['scaling']}"))
            if panel["main"]:
                shown = f"{best} {others[best]:.2g}, {worst} {others[worst]:.2g}"
                cells.append(f"{panel['dataset']} {found['B']:.2g} ({shown})")
        least, most = (f"{ratio:.2f} ({where})" for ratio, where in (min(ratios), max(ratios)))
        lines.append(
            f"| error of the {kernel.replace('_', ' ')} kernel at n = 5: quadrature (least and most of other maps); "
            f"over the least, in any scaling | {', '.join(cells)}; {least} to {most} "
            "| `benchmarks/kernel_approximation.py` |"
        )
    return lines


def minh_lines(minh: dict[str, Any]) -> list[str]:
    """Minh's Table 2: a line a number of frequencies, by both samplers."""
    lines = []
    for D in (50, 100):
        rows = {(row["method"], row["sampler"]): row for row in minh["rows"] if row["D"] == D}
        cells = []
        for name in dict.fromkeys(method for method, _ in rows):
            mine = [rows[name, sampler] for sampler in ("", "orthogonal", "iid") if (name, sampler) in rows]
            paper = f" ({mine[0]['paper']})" if mine[0]["paper"] else ""
            shown = ", ".join(f"{row['rmse']:.4f}" for row in mine)
            cells.append(f"{name} {shown}{paper}")
        lines.append(
            f"| Minh 2016, Table 2, D = {D}, mean RMSE, of orthogonal and of iid frequencies (the paper's, iid) "
            f"| {'; '.join(cells)} | `benchmarks/minh_table2.py` |"
        )
    return lines


def lattice_tables() -> list[str]:
    """What benchmarks/lattice.py has measured; a part that it has not has no table."""
    parts = _read("lattice.json") or {}
    tables = {"rule": rule_table, "real": real_table, "limits": limits_table, "digits": digits_table,
              "pass": pass_table, "solve": solve_table}  # fmt: skip
    lines = [line for part, lines in tables.items() if part in parts for line in ["", *lines(parts[part])]][1:]
    lines += ["", *peers_table(peers)] if (peers := _read("lattice_peers.json")) else []
    for file, sentence in {"lattice_kissgp.json": kissgp_line, "lattice_svgp.json": svgp_line}.items():
        lines += ["", sentence(part)] if (part := _read(file)) else []
    return lines


def _table(*rows: Sequence[object]) -> list[str]:
    """Lines of a table, its head first."""
    return [f"| {' | '.join(map(str, row))} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])]


def _turns(values: dict[str, Any], digits: int = 2) -> str:
    """The median of runs that took turns, and the least and the most of them."""
    return f"{values['median']:.{digits}f} ({values['least']:.{digits}f} to {values['most']:.{digits}f})"


def rule_table(rows: list[dict[str, Any]]) -> list[str]:
    errors, lines = (1e-2, 1e-4, 1e-6), []
    made = {(row["scalar"], row["form"], row["d"], row["error"]): row["m"] for row in rows
            if not row["length_scale_each"]}  # fmt: skip
    for scalar, form in dict.fromkeys((row["scalar"], row["form"]) for row in rows):
        ratios = [row["ratio"] for row in rows if (row["scalar"], row["form"]) == (scalar, form) and row["ratio"]]
        counts = [" / ".join(_whole(made.get((scalar, form, d, error))) for error in errors) for d in (2, 3)]
        lines.append([scalar, form, len(ratios), f"{min(ratios):.2f} to {max(ratios):.2f}", *counts])
    names = " / ".join(f"{error:g}" for error in errors)
    return [
        "Largest error of the kernel over 400 pairs of points, over the error that was asked for (1e-1 to 1e-6, as far "
        "as m is at most 60,000), in 1, 2 and 3 dimensions, with one length-scale and with one an input; and m at a "
        "length-scale of 0.4 sides of the box (Gaussian: 0.3). A dash: more than 60,000.",
        "",
        *_table(
            ["kernel", "form", "cases", "error over asked", f"m in 2-d at {names}", f"m in 3-d at {names}"], *lines
        ),
    ]


def _whole(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f}"


def real_table(part: dict[str, Any]) -> list[str]:
    lines = []
    for data, lam, form in dict.fromkeys((row["data"], row["lambda"], row["form"]) for row in part["rows"]):
        mine = [row for row in part["rows"] if (row["data"], row["lambda"], row["form"]) == (data, lam, form)]
        random = [ratio for row in mine for ratio in row["orthogonal"]]
        each = []
        for ratio, of in (("lattice", "m"), ("finer", "finer_m")):
            counts = " and ".join(f"{m:,}" for m in sorted({row[of] for row in mine}))
            each.append(f"{max(row[ratio] for row in mine):.5f} ({counts})")
        exact = f"{min(row['exact'] for row in mine):.3g}"
        lines.append([data, f"{lam:g}", form, exact, *each, f"{min(random):.3f} to {max(random):.3f}"])
    text = [
        "Root mean squared error on held-out rows over that of the exact kernel: the worst of lattices of error 1e-4 "
        "and 1e-5 (m of these), and of orthogonal features of the former's m (two draws). GLAD: 5 folds, length-scales "
        "of 15 and 30 km. Magnetic: every tenth row of walks 1 to 3 predicts those of walks 4 and 5, length-scale 0.4 "
        "m, z = 0. The smaller the ridge, the more of the lattice's error is seen.",
        "",
        *_table(["data", "ridge x rows", "kernel", "exact", "error 1e-4", "error 1e-5", "orthogonal"], *lines),
    ]
    if searches := part.get("tune"):
        cells = [
            [one["data"], f"{one['rows']:,}", one["trials"], f"{one['m']:,}", _turns(one["time_over_orthogonal"]),
             f"{one['score']['lattice'] / one['score']['orthogonal']:.3f}"]
            for one in searches
        ]  # fmt: skip
        head = ["data", "rows", "trials", "m", "time over orthogonal", "best squared error over orthogonal's"]
        text += ["", "A whole search by five folds, of length-scales, kernels and ridges: data that small are a matter "
                 "of solving, not of sums.", "", *_table(head, *cells)]  # fmt: skip
    flat = {(row["height"], row["form"]): row["m"] for row in part["nearly_constant"] if row["error"] == 1e-4}
    cells = [[form, *(f"{flat[height, form]:,}" for height in (0.0, 1e-12, 1e-3, 0.1))]
             for form in dict.fromkeys(form for _, form in flat)]  # fmt: skip
    head = ["kernel", "z constant", "z varies by 1e-12 m", "by 1 mm", "by 10 cm"]
    text += ["", "Features of the walks at error 1e-4, by how much their height varies:", "", *_table(head, *cells)]
    if answer := part.get("job_of_a_constant_input"):
        text += ["", f"A job of the walks as they are, with z = 0 in all rows: {answer.split(': ', 1)[-1]}."]
    return text


def limits_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        cells = [f"{at['lattice']['rmse']:.1e} / {at['orthogonal']['rmse']:.1e}" for at in row["at"]]
        counts = [_whole(row["m_for"][error]) for error in ("0.01", "0.001")]
        lines.append([row["d"], row["scalar"], f"{row['length_scale']:g}", *counts, *cells])
    head = ["inputs", "kernel", "length-scale / side", "m for 1e-2", "for 1e-3", *(
        f"m at most {at['m']:,}" for at in rows[0]["at"])]  # fmt: skip
    return [
        "Root mean squared error of the kernel at equal m, lattice (the best of four errors) / orthogonal "
        "(three draws); "
        "and about how many features a lattice needs. Half of the pairs are about a length-scale apart.",
        "",
        *_table(head, *lines),
    ]


def digits_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for route in ("direct", "cg"):
        for tolerance in dict.fromkeys(row["tolerance"] for row in rows):
            mine = [row for row in rows if (row["route"], row["tolerance"]) == (route, tolerance)]
            worst = min(mine, key=lambda row: float(row["right"] - row["says"]))
            over = sum(row["right"] < row["says"] for row in mine)
            second = sum(row["rung"] == "qr" for row in mine)
            least = min(row["right"] for row in mine)
            lines.append([route, f"{tolerance:g}", len(mine), second, f"{least:.1f}", over,
                          f"says {worst['says']:.1f}, right {worst['right']:.1f}"])  # fmt: skip
    return [
        "Digits of the fitted values, against a QR of the features of the same rows: ridges 1e-4 to 1e-12, "
        "two kernels, "
        "rows spread evenly and nearly all in one corner.",
        "",
        *_table(["route", "`tolerance`", "fits", "read the rows again, for a QR", "fewest digits right",
                 "fits that say too many", "worst fit"], *lines),
    ]  # fmt: skip


def _where(part: dict[str, Any]) -> str:
    return f" On {part['where']}." if part.get("where") else ""


def pass_table(part: dict[str, Any]) -> list[str]:
    text: list[str] = []
    if speeds := part.get("speed"):
        lines = [
            [f"{one['rows']:,}", f"{one['tolerance']:g}", one["workers"], _turns(one["of_reading"], 3),
             _turns(one["of_sums"]), _turns(one["of_finufft"]) if "of_finufft" in one else "-",
             _turns(one["of_one_after_other"])]
            for one in speeds
        ]  # fmt: skip
        first = speeds[0]
        head = [
            "rows",
            "`tolerance`",
            "workers",
            "of bare reading",
            "of bare sums",
            "of FINUFFT's",
            "of reading, then sums",
        ]
        text += [
            "Rows a second of a pass over rows x 2 -> 2 from Zarr (10^8 of them are files in memory, 10^9 are more "
            f"than it holds), m = {first['m']}, sums that serve {' x '.join(map(str, first['extents']))} frequencies, "
            "as a share of as many processes that do nothing but read, and nothing but sum (dorff's own loops, and "
            f"FINUFFT at the same tolerance). Median of {len(first['rows_per_s'])} turns (least to most), of 10^9 one."
            + _where(part),
            "",
            *_table(head, *lines),
            "",
        ]
    if bits := part.get("bits"):
        lines = [
            [one["workers"], one["killed"], one["leaves_reused"], f"{one['share']:.2f}", f"`{one['sha256'][:12]}`"]
            for one in bits["fits"]
        ]
        head = ["workers", "times killed", "leaves that were done", "peak memory over the plan's", "SHA-256"]
        same = "the same bits" if bits["same"] else "not the same bits"
        text += [f"The same fit, whole and killed (SIGKILL of all of its processes): {same}.", "",
                 *_table(head, *lines), ""]  # fmt: skip
    lines = [
        [" x ".join(map(str, one["extents"])), f"{one['tolerance']:g}", _turns(one["over_finufft"]),
         f"{one['error']:.0e}, {one['error_finufft']:.0e}"]
        for one in part.get("sums", ())
    ]  # fmt: skip
    if lines:
        head = ["frequencies (-M to M)", "tolerance", "seconds over FINUFFT's", "error, of FINUFFT"]
        text += ["Seconds of the sums of 2^20 rows in memory over those of FINUFFT, one thread (errors relative to "
                 "the summed sizes of the strengths, evenly spread rows).", "", *_table(head, *lines)]  # fmt: skip
    return text


def solve_table(part: dict[str, Any]) -> list[str]:
    lines = [[f"{one['m']:,}", f"{one['rmse']:.3f}", one["status"], f"{one['reads']:g}"] for one in part["fits"]]
    text = [
        f"{part['rows']:,} rows of a divergence-free field of size 1 with noise {part['noise']:g}, "
        f"Matern 5/2, length-scale 0.05 of the box, ridge {part['ridge']:.0e} (the noise's), conjugate gradients: "
        "error on 4,000 points without noise. The sums are those of the first fit.",
        "",
        *_table(["m", "error", "status", "reads of the rows"], *lines),
    ]
    if few := _read("lattice.json").get("fewer_rows"):
        cells = ", ".join(f"{name} {error:.3f}" for name, error in few["errors"].items())
        text += ["", f"With {few['rows']:,} rows and m = {few['m']}, as random features' sums take long: {cells}."]
    if steps := part.get("iterations"):
        cells = [[name, steps[key]["to_1e-3"], steps[key]["all"], "yes" if steps[key]["converged"] else "no"]
                 for name, key in (("a factored block", "block"), ("the diagonal", "diagonal"))]  # fmt: skip
        text += [
            "",
            f"Steps of conjugate gradients at {steps['unknowns']:,} unknowns, to residuals of 1e-3 and 1e-10, by what "
            "preconditions. A product takes "
            f"{_turns(steps['product_over_dense'])} of a product with a matrix 4096 x 4096.",
            "",
            *_table(["preconditioner", "steps to 1e-3", "steps in all", "converged"], *cells),
        ]
    return text


PEERS = {"efgp": "EFGP", "job": "job"}


def peers_table(part: dict[str, Any]) -> list[str]:
    """benchmarks/lattice_peers.py: fits at equal error, then what predictions take, over dorff's sums and solve."""
    fits, more = list[list[object]](), list[list[object]]()
    for case in part["cases"]:
        kernel = "Gaussian" if case["nu"] is None else f"Matern {2 * case['nu']:.0f}/2"
        name, runs = f"{kernel}, noise {case['noise']:g}", [run for run in case["runs"] if run.get("away") is not None]
        for threads in sorted({run["how"]["threads"] for run in runs}):
            here = [run for run in runs if run["how"]["threads"] == threads]
            for target in case["targets"]:
                best = {who: _fastest(here, who, target) for who in ("lattice", *PEERS)}
                if (ours := best["lattice"]) is None:
                    continue
                ran = {run["who"] for run in here}
                cells = [_over(best[who], ours, "fit_s") if who in ran else "not run" for who in PEERS]
                fits.append(
                    [name, threads, f"{target:g}", f"{ours['how']['error']:g}", f"{ours['how']['m']:,}", *cells]
                )
            closest = {who: min((run for run in here if run["who"] == who), key=lambda run: run["away"], default=None)
                       for who in ("lattice", *PEERS)}  # fmt: skip
            for who, run in closest.items():
                if run and (ours := closest["lattice"]):
                    cells = [_over(run, ours, f"predict_{count}_s") for count in ("few", "many")]
                    more.append([name, threads, PEERS.get(who, "dorff"), f"{run['away']:.0e}",
                                 f"{run['rmse_few']:.5f}", *cells, f"{run['start_s']['median']:.1f} s"])  # fmt: skip
    missing = ", ".join(part["missing"])
    return [
        f"Peers, {part['rows']:,} rows in the unit square, length-scale 0.1 (`benchmarks/lattice_peers.py`): seconds "
        "of a fit over those of dorff's sums and solve of rows in memory, each with the fastest of its settings whose "
        "posterior mean is nowhere further off than that. job: from Zarr to a published model. A dash: none is. EFGP "
        "is our own Python, by finufft; Gaussian with noise 1 is the setting of gp-shootout's log. On "
        f"{part['machine']}." + (f" Not installed: {missing}." if missing else ""),
        "",
        *_table(["kernel", "threads", "off by at most", "`error`", "m", *PEERS.values()], *fits),
        "",
        "The same, the closest setting of each: its largest error, RMSE to the truth without noise, seconds of "
        "predictions at 10^4 and 10^6 points over dorff's, and seconds of imports and a first small fit.",
        "",
        *_table(["kernel", "threads", "who", "off by", "RMSE", "10^4 points", "10^6 points", "start"], *more),
    ]


def kissgp_line(part: dict[str, Any]) -> str:
    """The same benchmark with `--who kissgp,lattice --threads 1 --limit 7000`: for who waits, on any machine."""
    runs = part["cases"][0]["runs"]
    (slow,) = (run for run in runs if run["who"] == "kissgp")
    ours = min((run for run in runs if run["who"] == "lattice"), key=lambda run: abs(run["away"] - slow["away"]))
    spent = [run["fit_cpu_s"]["median"] for run in (slow, ours)]
    return (
        f"KISS-GP (grid of {slow['how']['grid']} x {slow['how']['grid']}, residual {slow['how']['residual']:g}, one "
        f"thread, noise {part['cases'][0]['noise']:g}) comes to an error of {slow['away']:.4f}, RMSE to the truth "
        f"{slow['rmse_few']:.5f}, after {spent[0] / spent[1]:,.0f} times the processor time of dorff's sums and solve "
        f"that come to {ours['away']:.4f} and {ours['rmse_few']:.5f}: one turn, on {part['machine']}."
    )


def svgp_line(part: dict[str, Any]) -> str:
    """The same benchmark with `--who svgp --threads 2 --repeats 1`, over the lattice beside the reference."""
    cells = []
    for case in part["cases"]:
        for run in case["runs"] if case["nu"] is None else ():
            who = f"with {run['how']['side'] ** 2} inducing points and noise {case['noise']:g}"
            if "over" in run:
                cells.append(f"more than {run['over']:.0f} s of time {who}")
            else:
                times = run["fit_cpu_s"]["median"] / case["beside"]["fit_cpu_s"]
                cells.append(f"off by {run['away']:.4f} after {times:,.0f} times {who}")
    ours = max(case["beside"]["how"]["error"] for case in part["cases"] if case["nu"] is None)
    return (
        f"SVGP, Gaussian kernels, two threads, in the processor time of dorff's sums and solve at `error` {ours:g}: "
        f"{'; '.join(cells)}. One turn, on {part['machine']}."
    )


def _fastest(runs: Sequence[dict[str, Any]], who: str, target: float) -> dict[str, Any] | None:
    near = [run for run in runs if run["who"] == who and run["away"] <= target]
    return min(near, key=lambda run: float(run["fit_s"]["median"]), default=None)


def _over(run: dict[str, Any] | None, ours: dict[str, Any], key: str) -> str:
    """The ratio of runs that took turns, and the least and the most; of a slow one, which ran once, over the median."""
    if run is None:
        return "-"
    each, theirs = run[key]["each"], ours[key]["each"]
    theirs = theirs if len(each) == len(theirs) else [ours[key]["median"]] * len(each)
    ratios = [a / b for a, b in zip(each, theirs, strict=True)]
    if len(ratios) == 1:
        return f"{ratios[0]:.2f}"
    return _turns({"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)})


def _read(name: str) -> Any:
    path = ROOT / "benchmarks" / "results" / name
    return json.loads(path.read_text()) if path.exists() else None


def skeleton_tables() -> list[str]:
    """Of docs/skeletons.md: errors over the baseline's, speed, images, digits."""
    lines: list[str] = []
    if made := _read("skeletons.json"):
        lines += [*error_ratios(made["error"]), ""]
        if speed := made.get("speed"):
            heads = "features a second over those of dense frequencies | ns a feature | numbers held for a frequency"
            lines += [f"| inputs d | {heads} |", "|---|---|---|---|"]
            for row in sorted(speed, key=lambda row: row["d"]):
                lines.append(
                    f"| {row['d']} | {_turns(row['of_dense'])} | {row['ns_a_feature']:.1f} "
                    f"| {row['numbers_a_frequency']:.1f} |"
                )
            lines += ["", f"One thread, m = {speed[0]['m']}, C(S) = 1 (`benchmarks/skeletons.py`).", ""]
    if made := _read("skeleton_images.json"):
        lines += image_lines(made)
    return lines


def error_ratios(rows: list[dict[str, Any]]) -> list[str]:
    """Error of each scheme over that of the baseline with as many columns, the least and the most of all numbers of
    columns."""
    lines = ["| kernel, scheme | mean | root mean square | largest | 1 - correlation |", "|---|---|---|---|---|"]
    base = {(row["kernel"], row["m"]): row for row in rows if "RR" in row["scheme"]}
    for kernel, scheme in dict.fromkeys((row["kernel"], row["scheme"]) for row in rows if "RR" not in row["scheme"]):
        cells = []
        for measure in ("mean", "rms", "largest", "correlation"):
            of = (lambda row: 1 - row["correlation"]) if measure == "correlation" else (lambda row, m=measure: row[m])
            over = [
                of(row) / of(base[kernel, row["m"]])
                for row in rows
                if (row["kernel"], row["scheme"]) == (kernel, scheme)
            ]
            cells.append(f"{min(over):.2f} to {max(over):.2f}")
        lines.append(f"| {kernel}, {scheme} | {' | '.join(cells)} |")
    return lines


def counts_head(what: str, counts: list[int]) -> list[str]:
    """A table's head, of a column for each number of features."""
    return [f"| {what} | {' | '.join(f'm = {m}' for m in counts)} |", "|---" * (len(counts) + 1) + "|"]


def image_lines(made: dict[str, Any]) -> list[str]:
    """Accuracy of each architecture, then time and memory; digits; the speed of a whole fit."""
    lines = []
    if table := made.get("table"):
        counts = sorted({row["m"] for row in table})
        lines += counts_head("CIFAR-10, 3,000 images", counts)
        cells = {(row["architecture"], row["m"]): row for row in table}
        for name in dict.fromkeys(row["architecture"] for row in table):
            some = [f"{cells[name, m]['accuracy']:.3f}" if (name, m) in cells else "" for m in counts]
            lines.append(f"| {name} | {' | '.join(some)} |")
        for what, key, unit in (("seconds", "seconds", 1), ("peak memory of a worker, GiB", "peak_bytes", 2**30)):
            some = []
            for m in counts:
                values = [row[key] / unit for row in table if row["m"] == m]
                some.append(f"{statistics.median(values):.1f} ({max(values):.1f})")
            lines.append(f"| {what}, median (most) | {' | '.join(some)} |")
        lines += ["", "Standard error .016 (`benchmarks/skeleton_images.py`).", ""]
    if digits := made.get("digits"):
        counts = sorted({row["m"] for row in digits})
        lines += counts_head("MNIST, 10,000 test images", counts)
        for name in dict.fromkeys(row["kernel"] for row in digits):
            some = [f"{row['accuracy']:.4f}" for row in digits if row["kernel"] == name]
            lines.append(f"| {name} | {' | '.join(some)} |")
        lines.append("")
    if fits := made.get("fit"):
        shares = [f"{_turns(one['share'])} with {one['sampler']}" for one in fits]
        lines.append(
            f"A whole fit of {fits[0]['rows']:,} rows from Zarr, d = 1728, m = 8192, two workers: rows a second over "
            f"those of bare `syrk` {', '.join(shares)}; {fits[0]['inside']:.2f} of the workers' time is inside `syrk`."
        )
    return lines


def loss_tables() -> list[str]:
    """Of docs/losses.md: quantiles, few labels, digits, the field, many rows."""
    made, lines = _read("losses.json") or {}, list[str]()
    if part := made.get("beijing"):
        lines += beijing_lines(part)
    if part := made.get("usps"):
        each = [[kind, f"{part['mean'][kind]:.3f}", ", ".join(f"{one:.3f}" for one in runs)]
                for kind, runs in part["accuracy"].items()]  # fmt: skip
        lines += ["USPS, ten labels a class: accuracy on the 2,007 test rows, one split after the other.", "",
                  *_table(["loss", "mean", "splits"], *each), ""]  # fmt: skip
    if part := made.get("digits"):
        each = [[row["loss"], f"{row['accuracy']:.4f}", f"{row['times']:.1f}", row["passes"]] for row in part["rows"]]
        head = ["loss", "accuracy", "seconds over those of squares", "passes"]
        lines += [f"MNIST, m = {part['m']:,}, 10,000 test rows (standard error .002), ridge by three folds.", "",
                  *_table(head, *each), ""]  # fmt: skip
    if part := made.get("field"):
        each = [[f"{row['ridge']:g}", row["passes"], f"{row['values']:.0e}", row["plain_passes"],
                 f"{row['plain_objective']:.0e}"] for row in part["rows"]]  # fmt: skip
        head = ["ridge", "passes", "values off by", "passes without coordinates", "objective above the least then"]
        lines += ["The curl-free field in five dimensions (Brault 2016): L-BFGS of squares from zero against the "
                  "closed form.", "", *_table(head, *each), ""]  # fmt: skip
    if part := made.get("rows"):
        peak, planned = (part[key] / 2**20 for key in ("peak", "planned_peak"))
        lines += [f"{part['rows']:,} rows, three quantiles of two targets: peak memory {peak:,.0f} MiB, planned "
                  f"{planned:,.0f}; passes {part['passes']}, planned {part['planned_passes']}.", ""]  # fmt: skip
    lines += ["All of this by `benchmarks/losses.py`.", ""] * bool(made)
    return lines + descent_lines(_read("stochastic.json") or {})


def descent_lines(made: dict[str, Any]) -> list[str]:
    """Descent by batches against L-BFGS, and features drawn at each step against one set of them."""
    lines = list[str]()
    for name, title, what in (
        ("mnist", "MNIST, multinomial", "test error"),
        ("powerplant", "Powerplant", "test error"),
    ):
        if not (part := made.get(name)):
            continue
        summary = part["summary"]
        methods = {key: one for key, one in summary.items() if "excess" in one}
        each = [
            [key.replace("_", " "), f"{one['excess']:.4f} ({one['worst_excess']:.4f})",
             f"{one['error']:.4f} ({one['worst_error']:.4f})", f"{one['first_pass_error']:.4f}", one["passes"],
             f"{one['seconds_over_lbfgs']:.2f}"] for key, one in methods.items()
        ]  # fmt: skip
        head = ["by", "objective above the best (worst)", f"{what} (worst)", "after one pass", "passes"]
        equal, growth = summary["equal_time"], summary["growth"]
        lines += [
            f"{title}, {made['rows']:,} rows at most, batches of {made['batch']}, medians of {made['runs']} seeds:", "",
            *_table([*head, "seconds over those of L-BFGS"], *each), "",
            f"Doubly stochastic after {equal['doubly_steps']:.0f} steps of {made['drawn']} features "
            f"{equal['doubly']:.4f} ({equal['doubly_worst']:.4f}), SGD on one set of features in the same time "
            f"{equal['sgd']:.4f} ({equal['sgd_worst']:.4f}). The time of its step number t grows as "
            f"t^{growth['exponent']:.2f} ({growth['exponent_worst']:.2f}) over {growth['steps']:.0f} steps, less what "
            f"the first ones take as t^{growth['net']:.2f} ({growth['net_worst']:.2f}), so that T steps cost about "
            "T^2.", "",
        ]  # fmt: skip
    return [*lines, "Descent by `benchmarks/stochastic.py`."] if lines else lines


def beijing_lines(part: dict[str, Any]) -> list[str]:
    """Pinball losses and coverage in the last year."""
    each = []
    for kind, row in part["rows"].items():
        shares = [[row["below"][q][k] for q in range(len(row["below"]))] for k in range(3)]
        cells = [f"{statistics.mean(one):.3f} ({min(one):.3f} to {max(one):.3f})" for one in shares]
        each.append([kind, *(f"{one:.4f}" for one in row["pinball"]), *cells, f"{row['crossed']:.2%}"])
    peak, planned = (part["fit"][key] / 2**20 for key in ("peak_bytes", "plan_peak_bytes"))
    fit, head = part["fit"], ["bands by", *(f"loss at {tau}" for tau in (0.1, 0.5, 0.9))]
    head += [*(f"below {tau}" for tau in (0.1, 0.5, 0.9)), "crossed"]
    held = [[one[tau] for one in fit["held_out"].values()] for tau in ("0.1", "0.5", "0.9")]
    of_held = ", ".join(f"{statistics.mean(one):.3f} ({min(one):.3f} to {max(one):.3f})" for one in held)
    return [
        f"Beijing, six stations, six pollutants, {part['scored']:,} hours of the last year (fit: {fit['rows_used']:,} "
        f"hours before, m = {fit['m']:,}): pinball losses over each pollutant's deviation, mean of the six, and the "
        "share below each quantile, the mean, least and most of the six.",
        "",
        *_table(head, *each),
        "",
        f"On held-out rows of the years that were fitted the shares are {of_held}; the last year is another one.",
        "",
        f"{fit['passes']} passes (planned {fit['planned_passes']}), {fit['seconds_over_squares']:.0f} times the "
        f"seconds of least squares; peak memory {peak:,.0f} MiB of {planned:,.0f} planned.",
        "",
    ]


PAGES = {
    "README.md": headline,
    "docs/evidence.md": figures,
    "docs/lattice.md": lattice_tables,
    "docs/losses.md": loss_tables,
    "docs/skeletons.md": skeleton_tables,
}


if __name__ == "__main__":
    sys.exit(main())
