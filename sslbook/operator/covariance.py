r"""The covariance operator as an operator: products with it, never its matrix.

On a finite population of ``N`` samples with ``V`` equally likely views each, every operator of Section 4 of [tian2020]
has the form

    OP = sum_{a,b} C_ab  L_a R_b^T,      a, b over the N V views,

with connections :math:`R_a = K_l(x_a)` (and :math:`L_a = R_a`, except under l2 normalisation, where
:math:`R_a = K_a / \|f_a\|` and :math:`L_a = R_a P^\perp_{f_a}`), and a matrix ``C`` on the views that is a few means and
differences (:class:`~sslbook.operator.view_weights.Mixing`).  So ``OP v`` is one JVP, one mixing, one VJP.  The ``N V`` forward
passes happen once.

Three functions make one: :func:`simple_operator` (Theorem 3, Corollary 1 and Eq. 56), :func:`weighted_operator` (Theorem 4), and
:func:`batch_operator` of any loss of inner products (chapter operators_today).  :func:`covariance_operator` chooses among them by
the name of a loss, and :func:`intra_operator` is :math:`EV_l` alone.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator
from torch import Tensor, nn

from sslbook._ambient import anywhere, default_device_of, methods_anywhere, with_gradients
from sslbook._check import counted, require_number, require_one_of, require_whole
from sslbook.losses.batch import LOSSES
from sslbook.losses.pairs import half_squared_distance, pair_weight
from sslbook.operator.eigen import EigenPairs, lanczos, rayleigh_ritz
from sslbook.operator.frozen import frozen, in_full
from sslbook.operator.layer import OpenedLayer, open_layer, require_batch, unvec, vec
from sslbook.operator.view_weights import Loss, Mixing, PairMixing, gram_weights, is_symmetric


@methods_anywhere
@dataclass(frozen=True, eq=False)
class CovarianceOperator:
    r"""This is the operator ``OP_l`` of one layer on a fixed population of views.

    :func:`covariance_operator` and :func:`intra_operator` create it.  opened: the layer, with its inputs and
    the network's outputs for all views.  population: the pair ``(N, V)``.  mixing: the weight of each pair of views, ``C``.
    of: the name of the loss.  normalize: whether the output is l2-normalised (Eq. 56), which makes the operator a cross-covariance.

    Of these it has its ``shape``, ``(size, size)`` with as many rows as the layer has weights; the ``dtype`` and the ``device`` of
    the weight; and ``symmetric``, whether it equals its transpose by construction.

    Directions have the weight's shape, dtype and device; vectors have the order of :func:`sslbook.operator.layer.vec`.

    >>> import sslbook
    >>> op = sslbook.covariance_operator(sslbook.mlp((4, 5, 2)), "0", torch.arange(48.0).double().reshape(4, 3, 4).sin())
    >>> op
    CovarianceOperator(layer '0' (5 x 4 weights), 4 samples x 3 views, loss simple, symmetric, torch.float64, cpu)
    >>> step = torch.ones(5, 4, dtype=torch.float64)
    >>> bool((op.apply(step) - unvec(op.dense() @ vec(step), (5, 4))).abs().max() < 1e-12)
    True
    """

    opened: OpenedLayer
    population: tuple[int, int]
    mixing: Mixing | PairMixing
    normalize: bool = False
    of: str = "simple"
    shape: tuple[int, int] = field(init=False)
    dtype: torch.dtype = field(init=False)
    device: torch.device = field(init=False)
    symmetric: bool = field(init=False)
    _norm: Tensor | None = field(init=False)  # of each view's output, (B, 1), under normalisation

    def __post_init__(self) -> None:
        """Work out what follows from the fields; raises ValueError where an output has no direction to be normalised to."""
        weight, output = self.opened.weight, self.opened.output
        matrix = self.mixing.matrix if isinstance(self.mixing, PairMixing) else self.mixing.weights
        symmetric = not self.normalize and is_symmetric(matrix)
        vars(self).update(shape=(weight.numel(), weight.numel()), dtype=weight.dtype, device=weight.device)
        vars(self).update(symmetric=symmetric, _norm=lengths("view", output) if self.normalize else None)

    def __repr__(self) -> str:
        (n, v), shape = self.population, " x ".join(map(str, self.opened.weight.shape))
        kind = "symmetric" if self.symmetric else "not symmetric"
        place = f"layer {self.opened.name!r} ({shape} weights), {counted(n, 'sample')} x {counted(v, 'view')}"
        given = "" if self.opened.given == self.dtype else f" of weights given in {self.opened.given}"
        return f"CovarianceOperator({place}, loss {self.of}, {kind}, {self.dtype}{given}, {self.device})"

    def apply(self, direction: Tensor) -> Tensor:
        """Apply ``OP`` to one direction in the weight's shape, or to several, ``(k, *shape)``; the result has the same shape.

        It costs one JVP, one mixing of the views, and one VJP, through the network above the layer.
        """
        return self.opened.vjp(self._mixed(self.opened.jvp(direction)))

    def apply_transpose(self, direction: Tensor) -> Tensor:
        """Apply ``OP^T``, :math:`K M^T K^T`, to one direction or to several, at the same cost."""
        return self.opened.vjp(self._mixed(self.opened.jvp(direction), adjoint=True))

    def matvec(self, vector: Tensor) -> Tensor:
        """Return ``OP v`` for ``v`` of shape ``(size,)``, in the order of :func:`sslbook.operator.layer.vec`."""
        return vec(self.apply(unvec(vector, self.opened.weight.shape)))

    def matmat(self, matrix: Tensor, *, transposed: bool = False) -> Tensor:
        """Return ``OP M``, or ``OP^T M`` if ``transposed``, for ``M`` of shape ``(size, k)``, in one batched pass."""
        directions = torch.stack([unvec(column, self.opened.weight.shape) for column in matrix.T])
        found = self.apply_transpose(directions) if transposed else self.apply(directions)
        return torch.stack([vec(out) for out in found], dim=1)

    def update(self) -> Tensor:
        r"""Return ``OP vec(W)`` in the weight's shape, the paper's update (Eq. 3) for outputs of degree 1 in the layer.

        Warns if the step differs by more than 1 % (rounding is far below) because of a bias, a parallel path or a degree other
        than 1; then use :meth:`exact_update`.
        """
        linear, output = self.opened.jvp(self.opened.weight), self.opened.output
        if bool(linear.any() | output.any()) and (gap := relative_gap(linear, output)) > 0.01:
            warnings.warn(
                f"the outputs aren't K^T vec(W) of layer {self.opened.name!r}, as OP vec(W) supposes: they differ by {gap:.0%} "
                "(a bias, a parallel path or another degree than 1); exact_update() is the step all the same",
                stacklevel=3,
            )
        return self.opened.vjp(self._mixed(linear))

    def exact_update(self) -> Tensor:
        r"""Return the layer's step in *any* network, :math:`\mathrm{Cov}_x[\bar K_l, \bar f_L]`.

        This is minus the gradient in the layer's weight as a free parameter.  Where training moves other numbers, because
        the weight is pruned or computed (``weight_norm``, ``parametrize``), its step is the image of this one in them.
        It equals :meth:`update` where :math:`K_l^T vec(W_l) = f_L`, which a bias, a parallel path or a degree other than 1
        violates; :meth:`euler_gap` measures by how much.
        """
        return self.opened.vjp(self._mixed(self.opened.output))

    def euler_gap(self, degree: float = 1.0) -> float:
        r"""Return the largest :math:`\|K_l^T vec(W_l) - \kappa f_L\| / \max \|\kappa f_L\|` over the population.

        Here :math:`\kappa` is the argument ``degree``.  The gap is 0 where Theorem 1 applies, and where both sides are zero,
        as with a head that starts at zero.
        """
        linear = self.opened.jvp(self.opened.weight)
        output = require_number("degree", degree, above=0) * self.opened.output
        return relative_gap(linear, output) if bool(linear.any() | output.any()) else 0.0

    def trace(self) -> float:
        r"""Return the exact trace, one output ``o`` at a time; it costs about as many products as the network has outputs.

        It is :math:`\sum_{ab} C_{ab} \sum_o \langle L_a e_o, R_b e_o \rangle`.  In a linear layer :math:`K_a = f_a \otimes J_a^T`,
        so that an inner product of connections is one of inputs times one of Jacobians: where it has more weights than views,
        these are taken, and ``(N V)^2`` numbers stored; otherwise the views' gradients, ``N V size``.
        """
        opened, below = self.opened, self.opened.below
        by_views = isinstance(opened.module, nn.Linear) and below.ndim == 2 and len(below) <= self.shape[0]
        gradients = opened.pulled_back if by_views else opened.sample_gradients
        total = gram = torch.zeros((), dtype=torch.float64, device=self.device)
        for rows in opened.units():
            right = gradients(self._scaled(rows)).double()
            left = gradients(self._scaled(rows, tangential=True)).double() if self.normalize else right
            if by_views:
                gram = gram + right @ left.T
            else:
                total = total + (left * self.mixing(right.unflatten(0, self.population)).flatten(0, 1)).sum()
        if by_views:
            products = gram * (below.double() @ below.double().T)
            total = self.mixing(products.unflatten(0, self.population)).flatten(0, 1).diagonal().sum()
        return float(total)

    def dense(self) -> Tensor:
        """Return the matrix ``(size, size)``, from the connection of each view, for small layers and as a reference."""
        fields = self.opened.connections().movedim(1, 0)  # a direction is one weight: (size, B, n_L)
        return torch.einsum("nbo,mbo->nm", fields, self._mixed(fields))

    def top_eigenpairs(self, k: int = 5, *, tol: float = 1e-9, seed: int = 0) -> EigenPairs:
        r"""Return the ``k`` algebraically largest eigenpairs of a symmetric operator.

        Lanczos' method (ARPACK) finds them up to ``tol``.  If ``C`` is positive and ``N V n_L`` is below the number of
        weights, it uses :math:`B^T B`, where :math:`OP = B B^T`, :math:`B = K C^{1/2}`.  For at most ``4 k + 32`` weights,
        the matrix is formed.  Raises ValueError if the operator isn't symmetric or ``k`` is outside ``1 .. size``.
        """
        return self._eigenpairs(k, tol, seed)

    def bottom_eigenpairs(self, k: int = 5, *, tol: float = 1e-9, seed: int = 0) -> EigenPairs:
        """Return the ``k`` algebraically smallest eigenpairs; a step shrinks weights along those with negative values."""
        found = self._eigenpairs(k, tol, seed, sign=-1)
        return replace(found, values=-found.values)

    def to_scipy(self) -> LinearOperator:
        """Return a ``LinearOperator`` of ``scipy.sparse.linalg``, for NumPy vectors of any number type.

        Its products have the weight's dtype, or the corresponding complex dtype for a complex vector.
        """
        real = np.dtype(torch.finfo(self.dtype).dtype)

        def multiply(given: np.ndarray, transposed: bool = False) -> np.ndarray:
            columns, halves = given.reshape(len(given), -1), np.iscomplexobj(given)  # the matrix is real
            columns = np.concatenate([columns.real, columns.imag], axis=1) if halves else columns
            vectors = torch.from_numpy(columns.astype("f8")).to(self.opened.weight)
            found = self.matmat(vectors, transposed=transposed).cpu().numpy()
            first, *second = np.split(found, 1 + halves, axis=1)
            return (first + 1j * second[0] if halves else first).reshape(given.shape)

        adjoint = partial(multiply, transposed=True)
        return LinearOperator(self.shape, multiply, adjoint, multiply, real, adjoint)

    def _mixed(self, u: Tensor, *, adjoint: bool = False) -> Tensor:
        r"""Apply what stands between the connections, ``M`` of ``OP = K M K^T``, to a field ``(B, n_L)``, or ``(k, B, n_L)``.

        It is ``C``; under normalisation :math:`M_{ab} = C_{ab} P^\perp_{f_a} / (\|f_a\| \|f_b\|)` (Eq. 56), since a step along an
        output moves no direction.  adjoint: ``M^T``.
        """
        u = self._scaled(u, tangential=adjoint)
        mixed: Tensor = self.mixing(u.movedim(-2, 0).unflatten(0, self.population), adjoint=adjoint)
        return self._scaled(mixed.flatten(0, 1).movedim(0, -2), tangential=not adjoint)

    def _scaled(self, u: Tensor, *, tangential: bool = False) -> Tensor:
        r"""Under normalisation a field divided by the outputs' norms, first without its part along them if ``tangential``."""
        if self._norm is None:
            return u
        if tangential:
            unit = self.opened.output / self._norm
            u = u - (u * unit).sum(-1, keepdim=True) * unit
        return u / self._norm

    def _eigenpairs(self, k: int, tol: float, seed: int, sign: int = 1) -> EigenPairs:
        """The ``k`` largest eigenpairs of ``sign * OP``, by one of the three ways of :meth:`top_eigenpairs`.

        A tolerance below a few units of rounding is raised to these: below them, float32 gains nothing.
        """
        opened, size = self.opened, self.shape[0]
        if not self.symmetric:
            raise ValueError("eigenpairs are for symmetric operators; for others use to_scipy() and scipy's eigs")
        k = require_whole("k", k, least=1, most=size)
        few = 4 * k + 32
        tol = max(tol, 4 * torch.finfo(self.dtype).eps)
        root = self.mixing.root(*self.population) if sign > 0 and few < opened.output.numel() < size else None
        if size <= few:
            basis = torch.linalg.eigh(sign * self.dense())[1].flip(1)[:, :k]
        elif root is None:
            basis = lanczos(lambda v: sign * self.matvec(v), opened.weight, k, tol=tol, seed=seed)
        else:
            basis = self._through_views(root, k, tol, seed)
        return rayleigh_ritz(lambda columns: sign * self.matmat(columns), basis, tuple(opened.weight.shape))

    def _through_views(self, root: Mixing | PairMixing, k: int, tol: float, seed: int) -> Tensor:
        r"""The ``k`` leading eigenvectors, ``(size, k)``, as :math:`B u` of those of :math:`B^T B`, which are fields on the views.

        root: :math:`C^{1/2}`.  A product with :math:`B^T B = C^{1/2} K^T K C^{1/2}` is one with the layer's tangent kernel
        :math:`K^T K`.  Where an eigenvalue is zero, so is :math:`B u`, and any direction will do: one at random.
        """
        opened, kernel = self.opened, self.opened.kernel()

        def half(field: Tensor) -> Tensor:
            return root(field.reshape(*self.population, -1)).flatten(0, 1)

        fields = lanczos(lambda u: half(kernel(half(u))).flatten(), opened.output, k, tol=tol, seed=seed)
        basis = torch.stack([vec(opened.vjp(half(field))) for field in fields.T], dim=1)
        length = basis.norm(dim=0)
        draw = torch.Generator().manual_seed(seed)
        other = torch.randn(basis.shape, generator=draw, dtype=self.dtype).to(self.device)
        return torch.where(length > 1e-6 * length.max(), basis / length, other)


@with_gradients
def covariance_operator(
    net: nn.Module,
    layer: str | nn.Module,
    views: Tensor,
    *,
    loss: str | Loss = "simple",
    temperature: float | None = None,
    margin: float = 0.0,
    beta: float = 0.0,
    normalize: bool = False,
    clean: Tensor | None = None,
    of_gram: bool = False,
) -> CovarianceOperator:
    r"""Return the covariance operator of ``layer`` for a loss, on a population or on a batch of views.

    views: a tensor ``(N, V, ...)`` of V views of each of N samples.  A batch of images alone has no axis of views: ``images[:,
    None]`` is one view each.  For the losses of [tian2020] these samples are the population, and the views of a sample are
    equally likely:

    * ``"simple"`` gives :math:`V_x[\bar K_l]` (Theorem 3), or :math:`-\beta EV_l + VE_l` with ``beta`` (Corollary 1).
    * ``"soft_triplet"`` and ``"info_nce"`` give the main term :math:`\frac12 V^\xi_{x,x'}[\bar K_l(x) - \bar K_l(x')]`
      of Theorem 4 (H = 1).  They need ``temperature`` and ``clean``, the un-augmented samples ``(N, ...)``.  The
      weight :math:`\xi` of a pair of samples depends on the distance between their outputs before augmentation.

    For any other loss of inner products, ``views`` are one batch, and the operator is
    :math:`-2 \sum_{ab} \Gamma_{ab} K_a K_b^T` with :math:`\Gamma = \partial \ell / \partial G`
    (:func:`sslbook.operator.view_weights.gram_weights`).  It is symmetric and exact; gradients flow through all views.

    * The loss may be a name in :data:`sslbook.losses.batch.LOSSES`, such as ``"info_nce"`` without ``clean``.
      Some of these losses need ``temperature``.
    * It may also be a function of the outputs ``(N, V, d)``, for any ``d``, or, with ``of_gram``, of their inner
      products ``(N V, N V)``.  ``functools.partial(loss, temperature=0.5)`` gives it its arguments.

    normalize: whether a loss of [tian2020] divides the network's output by its norm; the operator is then
    :math:`Cov_x[\overline{K^n P^\perp}, \bar K^n]` (Eq. 56).  Any other loss must do this itself if it needs it.

    The network ``net`` must treat samples independently, and ``layer`` must be a linear or convolutional layer of it.
    A network in half precision is run in float32 with the same weights, and the operator's repr says so.
    Raises ValueError or TypeError for ``views`` of another shape, for an unknown loss or one that depends on more than inner
    products, and for an argument that the loss needs or has no use for.

    >>> import sslbook
    >>> net = sslbook.mlp((4, 5, 2))
    >>> views = torch.linspace(-1, 1, 48, dtype=torch.float64).reshape(4, 3, 4).sin()
    >>> sslbook.covariance_operator(net, "0", views).top_eigenpairs(2).directions().shape
    torch.Size([2, 5, 4])
    >>> sslbook.covariance_operator(net, "2", views, loss="info_nce", temperature=0.5).exact_update().shape
    torch.Size([2, 5])
    """
    options: dict[str, Any] = {"margin": margin or None, "beta": beta or None, "normalize": normalize or None}
    options |= {"of_gram": of_gram or None, "temperature": temperature, "clean": clean}
    options = {name: value for name, value in options.items() if value is not None}
    if callable(loss):
        return batch_operator(net, layer, views, loss, **options)
    require_one_of("loss", loss, [name for name in LOSSES if name not in ("exact", "quadratic")])
    if loss == "simple":
        return simple_operator(net, layer, views, **options)
    if loss == "soft_triplet" or (loss == "info_nce" and clean is not None):
        return weighted_operator(net, layer, views, loss=loss, **options)
    of_loss = {name: options.pop(name) for name in ("temperature",) if name in options}
    return batch_operator(net, layer, views, partial(LOSSES[loss].value, **of_loss), **options)


@with_gradients
def simple_operator(
    net: nn.Module, layer: str | nn.Module, views: Tensor, *, beta: float = 0.0, normalize: bool = False
) -> CovarianceOperator:
    r"""Return :math:`V_x[\bar K_l]` of the simple loss (Theorem 3), or :math:`-\beta EV_l + VE_l` with ``beta`` (Corollary 1).

    views: ``(N, V, ...)``, the population.  normalize: whether outputs are divided by their norm, which makes the operator
    :math:`Cov_x[\overline{K^n P^\perp}, \bar K^n]` (Eq. 56); raises ValueError where an output is zero.
    """
    return CovarianceOperator(*_open_views(net, layer, views), Mixing(inter=1.0, intra=-beta), normalize)


@with_gradients
def weighted_operator(
    net: nn.Module,
    layer: str | nn.Module,
    views: Tensor,
    *,
    clean: Tensor,
    temperature: float,
    loss: str = "info_nce",
    margin: float = 0.0,
    normalize: bool = False,
) -> CovarianceOperator:
    r"""Return :math:`\frac12 V^\xi_{x,x'}[\bar K_l(x) - \bar K_l(x')]`, the main term of Theorem 4 with one negative.

    clean: the un-augmented samples, ``(N, ...)``, between whose outputs :math:`\xi` takes its distances (:func:`pair_weights`).
    loss: "info_nce" or "soft_triplet", which has a ``margin``.  normalize: as in :func:`simple_operator`.
    """
    opened, population = _open_views(net, layer, views)  # first: a network that couples must not see clean
    if clean.shape != views[:, 0].shape:
        wanted, got = tuple(views[:, 0].shape), tuple(clean.shape)
        raise ValueError(f"clean must hold one sample for each row of views, {wanted}, got {got}")
    xi = pair_weights(net, clean, loss=loss, temperature=temperature, margin=margin, normalize=normalize)
    return CovarianceOperator(opened, population, Mixing(weights=xi), normalize, of=loss)


@with_gradients
def batch_operator(
    net: nn.Module, layer: str | nn.Module, views: Tensor, loss: Loss, *, of_gram: bool = False
) -> CovarianceOperator:
    r"""Return :math:`-2 \sum_{ab} \Gamma_{ab} K_a K_b^T`, with :math:`\Gamma = \partial \ell / \partial G`, for a loss of products.

    views: ``(N, V, ...)``, one batch.  loss: a function of its outputs ``(N, V, d)`` of any width, or with ``of_gram`` of their
    inner products (:func:`sslbook.operator.view_weights.gram_weights`, which refuses a loss that depends on more than these).
    """
    opened, population = _open_views(net, layer, views)
    weights = gram_weights(loss, opened.output.unflatten(0, population), of_gram=of_gram)
    named: Any = getattr(loss, "func", loss)  # of functools.partial
    name = getattr(named, "__name__", type(named).__name__)
    return CovarianceOperator(opened, population, PairMixing(-2 * weights), of=name)


@with_gradients
def intra_operator(net: nn.Module, layer: str | nn.Module, views: Tensor) -> CovarianceOperator:
    r"""Return :math:`EV_l = E_x V_{x' | x}[K_l(x')]`, the covariance *within* augmentations (Eq. 9).

    net, layer and views, ``(N, V, ...)``: as in :func:`covariance_operator`.  What a step of the simple loss keeps is
    :math:`V_x[\bar K_l]`; this is what averaging over the views takes away from the covariance of all views.

    >>> import sslbook
    >>> net, sample = sslbook.mlp((4, 5, 2)), torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(4, 1, 4)
    >>> sslbook.intra_operator(net, "0", sample.expand(4, 3, 4)).trace() < 1e-14  # three views that are alike
    True
    """
    return CovarianceOperator(*_open_views(net, layer, views), Mixing(inter=0.0, intra=1.0))


def _open_views(net: nn.Module, layer: str | nn.Module, views: Tensor) -> tuple[OpenedLayer, tuple[int, int]]:
    """The layer opened on all views ``(N, V, ...)`` of all samples, sample by sample, and ``(N, V)``.

    Raises TypeError or ValueError for views without these axes, and for what :func:`open_layer` refuses.
    """
    require_batch("views", views, 3, "samples, views, ...")
    return open_layer(net, layer, views.flatten(0, 1)), (views.shape[0], views.shape[1])


@anywhere
@torch.no_grad()
def pair_weights(
    net: nn.Module, clean: Tensor, *, loss: str, temperature: float, margin: float = 0.0, normalize: bool = False
) -> Tensor:
    r"""Return :math:`\xi(r(x_i, x_j))` of Eq. 6 for all pairs of un-augmented samples, ``(N, N)``.

    clean: ``(N, ...)``.  The distance is that of the network's outputs, :math:`r = \|f_L(x_i) - f_L(x_j)\|^2 / 2`, divided by their
    norms with ``normalize``.  loss, temperature, margin: as in :func:`sslbook.losses.pairs.pair_weight`.
    """
    with default_device_of(clean):
        output = frozen(net)(in_full(clean)).flatten(1)
    if normalize:
        output = output / lengths("clean sample", output)
    distances = half_squared_distance(output[:, None], output[None, :])
    return pair_weight(distances, loss=loss, temperature=temperature, margin=margin)


def lengths(what: str, output: Tensor) -> Tensor:
    """Return the norms of outputs ``(..., n_L)``, as ``(..., 1)``; the squares are summed in float64, which they fit.

    Raises ValueError for one that is zero, as of dead ReLUs: it has no direction to be normalised to.
    """
    norm: Tensor = torch.linalg.vector_norm(output, dim=-1, keepdim=True, dtype=torch.float64).to(output)
    if not bool(norm.all()):
        raise ValueError(f"normalize=True needs outputs that aren't zero: that of at least one {what} is (dead ReLUs?)")
    return norm


def relative_gap(value: Tensor, reference: Tensor) -> float:
    r"""Return the largest :math:`\|a_i - b_i\|` over the leading axis, divided by the largest :math:`\|b_i\|`.

    A vector counts as one item.  The scale is the batch's, so that an item that is zero (a dead ReLU) doesn't turn rounding into
    an error of 100 %.  Raises ValueError where the shapes differ, which broadcasting would hide.
    """
    if value.shape != reference.shape:
        raise ValueError(f"value and reference must have one shape, got {tuple(value.shape)}, {tuple(reference.shape)}")
    a, b = (part.detach().reshape(len(part) if part.ndim > 1 else 1, -1) for part in (value, reference))
    return float((a - b).norm(dim=1).max() / b.norm(dim=1).max())
