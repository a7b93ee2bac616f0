"""Who has to be trusted, and how much noise the sum of a round carries because of it."""

from __future__ import annotations

from enum import StrEnum

from fedDP.accounting.events import NeighboringRelation, sensitivity
from fedDP.errors import InvalidValueError, UnsupportedError
from fedDP.privacy.limits import CLIP_NORM, COUNT, NOISE_MULTIPLIER


class TrustModel(StrEnum):
    """Where noise is added, and so whom a client has to trust.

    ==================  ====================================================  ==================  =====================
    model               who is trusted                                        noise               variance of the sum
    ==================  ====================================================  ==================  =====================
    central             the server, which sees clipped updates                (z C)**2, once      (z C)**2
    distributed         an honest majority; the server sees sums only         (z C)**2 / n_min    n / n_min * (z C)**2
                                                                              by each client
    local               nobody                                                (z C)**2 by each    n * (z C)**2
                                                                              client
    record-level local  a record's own silo, which noises its own training    in each silo        by silo
    ==================  ====================================================  ==================  =====================

    >>> str(TrustModel.RECORD_LEVEL_LOCAL), TrustModel("central").trusted
    ('record-level local', 'the server, which sees every clipped update')
    """

    CENTRAL = "central"
    DISTRIBUTED = "distributed"
    LOCAL = "local"
    RECORD_LEVEL_LOCAL = "record-level local"

    @property
    def trusted(self) -> str:
        """Who is trusted, in words."""
        return _TRUSTED[self]

    def check_relation(self, neighboring_relation: NeighboringRelation) -> NeighboringRelation:
        """Returns the relation if a guarantee under this model may be stated for it.

        A local guarantee concerns one client's report, of which any two must be alike: their distance is 2 C.

        Raises:
            InvalidValueError: for an unknown relation.
            UnsupportedError: for another relation than replace-one under the local model.
        """
        if self is TrustModel.LOCAL and sensitivity(neighboring_relation) != 2.0:
            raise UnsupportedError(
                f"trust model 'local' with neighboring_relation={neighboring_relation!r}: two reports of a client lie "
                "up to twice the clip norm apart. Use 'replace_one'."
            )
        sensitivity(neighboring_relation)
        return neighboring_relation

    def sum_variance(
        self, *, noise_multiplier: float, clip_norm: float, num_clients: int, min_honest: int | None = None
    ) -> float:
        """Variance of the noise on the sum of a round's clipped updates, per coordinate.

        Guarantee: with the distributed model it is at least (z C)**2, also when all but `min_honest` of the clients
        subtract their own shares.

        Args:
            noise_multiplier: z, in (0, 1e5].
            clip_norm: C, in [1e-9, 1e9].
            num_clients: clients whose updates are in the sum.
            min_honest: distributed only, and needed there: the fewest honest clients with which a round goes on; each
                client adds noise of variance (z C)**2 / min_honest.

        Raises:
            InvalidValueError: for a value outside its range, `min_honest` missing or given to another model, or fewer
                clients than `min_honest`, whose shares do not add up to the noise that was promised.
            UnsupportedError: for the record-level local model, whose noise is not on the sum.

        >>> TrustModel.LOCAL.sum_variance(noise_multiplier=2.0, clip_norm=0.5, num_clients=10)
        10.0
        """
        std = NOISE_MULTIPLIER.check("noise_multiplier", noise_multiplier) * CLIP_NORM.check("clip_norm", clip_norm)
        clients = COUNT.check("num_clients", num_clients)
        if self is TrustModel.RECORD_LEVEL_LOCAL:
            raise UnsupportedError(
                "trust model 'record-level local': its noise is inside each silo's training, none is on the sum. "
                "State each silo's own noise multiplier."
            )
        if self is not TrustModel.DISTRIBUTED:
            if min_honest is not None:
                raise InvalidValueError("min_honest", min_honest, f"None for the trust model {str(self)!r}")
            return std * std * (clients if self is TrustModel.LOCAL else 1.0)
        honest = COUNT.check("min_honest", min_honest)
        if clients < honest:
            raise InvalidValueError(
                "num_clients",
                num_clients,
                f"at least min_honest={min_honest}",
                "Stop the round before the sum is revealed: too few shares of the noise are in it.",
            )
        return std * std * (clients / honest)


_TRUSTED = {
    TrustModel.CENTRAL: "the server, which sees every clipped update",
    TrustModel.DISTRIBUTED: "an honest majority of each cohort; the server sees sums only",
    TrustModel.LOCAL: "nobody",
    TrustModel.RECORD_LEVEL_LOCAL: "a record's own silo, and nobody else",
}
