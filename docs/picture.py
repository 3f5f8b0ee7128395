"""Draw docs/field.png: ocean drifters' velocities and the field that is fitted to them.

python docs/picture.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

from dorff import ORFFRegressor, kernels

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).resolve().parent


def main() -> None:
    """Fit a divergence-free kernel to the drifters that ship with dorff, and draw them beside the field."""
    rows = np.loadtxt(DOCS.parent / "dorff" / "demo_data" / "glad.csv", delimiter=",", skiprows=1)
    places, velocities = rows[:, :2], rows[:, 2:]
    # What `dorff demo` chooses by tracks that are held out.
    kernel = 60.0**2 * kernels.DivergenceFree(kernels.Gaussian(lengthscale=60.0))
    model = ORFFRegressor(kernel=kernel, n_features=1024, ridge=3e-4, standardize=False, random_state=0)
    model.fit(places, velocities)
    sides = [np.linspace(low, high, 50) for low, high in zip(places.min(0), places.max(0), strict=True)]
    x, y = np.meshgrid(*sides)
    grid = np.column_stack([x.ravel(), y.ravel()])
    field, slopes = model.predict(grid), model.model_.jacobian(grid)
    vorticity = (slopes[:, 1, 0] - slopes[:, 0, 1]).reshape(x.shape)  # dv/dx - du/dy
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), sharex=True, sharey=True, layout="constrained")
    left.quiver(*places.T, *velocities.T, width=0.002, scale=12)
    left.set(title=f"{len(rows)} velocities of drifters", xlabel="east (km)", ylabel="north (km)")
    bound = np.percentile(np.abs(vorticity), 99)
    drawn = right.pcolormesh(x, y, vorticity, cmap="RdBu_r", vmin=-bound, vmax=bound, shading="gouraud")
    thin = (slice(None, None, 2), slice(None, None, 2))
    u, v = (field[:, axis].reshape(x.shape)[thin] for axis in (0, 1))
    right.quiver(x[thin], y[thin], u, v, width=0.002, scale=12)
    right.set(title="fitted field; colour: vorticity", xlabel="east (km)")
    figure.colorbar(drawn, ax=right, label="(m/s) / km")
    figure.savefig(DOCS / "field.png", dpi=90)


if __name__ == "__main__":
    main()
