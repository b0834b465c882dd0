package loss

// bnpoWeight averages over all tokens of the batch (TRL's bnpo). Its name comes
// from BNPO (Xiao et al. 2025, arXiv:2506.02864), of which TRL takes only this
// token mean, not the Beta normalisation of rewards.
//
// Departure from TRL: TRL takes the mean inside each micro-batch and averages
// the means, so its result depends on the partition. Here the batch is the
// whole step, which makes bnpo equal to dapo.
func bnpoWeight(_ float64, t Totals, _ Config) float64 { return 1 / floor1(t.Tokens) }
