package loss

// luspoWeight is LUSPO (Liu et al. 2026, arXiv:2602.05261): GSPO's sequence
// objective times the length of the row, which takes the length bias out of
// the row mean. With a token's term equal for all tokens of a row that is their
// sum, averaged over rows; with token-level terms (KL, masks) TRL sums those
// likewise.
func luspoWeight(_ float64, t Totals, _ Config) float64 { return 1 / floor1(t.Rows) }
