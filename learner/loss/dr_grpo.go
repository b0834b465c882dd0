package loss

// drGRPOWeight divides by rows x a configured constant, so that a token weighs
// the same in a short and in a long row, whatever the padding (Dr. GRPO, Liu et
// al. 2025, arXiv:2503.20783, section 3.2 and listing 1: masked sum divided by
// the generation budget).
//
// Departure from TRL: rows are those of the whole step, not of a micro-batch.
func drGRPOWeight(_ float64, t Totals, c Config) float64 {
	return 1 / (floor1(t.Rows) * float64(c.MaxCompletionLength))
}
