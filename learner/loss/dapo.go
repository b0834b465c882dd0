package loss

// dapoWeight averages over all tokens of the step (DAPO, Yu et al. 2025,
// arXiv:2503.14476, eq. 12: 1/Σ|o_i| Σ_i Σ_t). The count is floored at 1, so a
// fully masked step has loss 0.
func dapoWeight(_ float64, t Totals, _ Config) float64 { return 1 / floor1(t.Tokens) }
