package loss

// grpoWeight averages tokens within a row, then rows (GRPO, Shao et al. 2024,
// arXiv:2402.03300, eq. 3: 1/G Σ_i 1/|o_i| Σ_t). A row without tokens weighs
// nothing but is still one of the rows.
//
// Departure from TRL: rows are those of the whole step, not of a micro-batch.
func grpoWeight(n float64, t Totals, _ Config) float64 {
	return 1 / floor1(n) / floor1(t.Rows)
}
