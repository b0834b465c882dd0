package model

import "slices"

// Merge gives the base weights with an adapter folded in, W + scale*B*A, in new
// memory; tensors that the adapter doesn't touch are shared with the base, which
// is loaded. A full adapter's weights are its own, in new memory too.
func (m *Model) Merge(a *Adapter) (*Weights, error) {
	if err := a.CheckBase(m.Digest); err != nil {
		return nil, err
	}
	if err := a.Check(m.Config); err != nil {
		return nil, err
	}
	if a.Full {
		return UnflattenWeights(m.Config, slices.Clone(a.Params))
	}
	modules, err := LoRAModules(m.Config, a.LoRA)
	if err != nil {
		return nil, err
	}
	if err := m.Weights.Load(); err != nil {
		return nil, err
	}
	w := *m.Weights
	w.Layers = append([]LayerWeights(nil), m.Weights.Layers...)
	weight := map[string]func(*LayerWeights) *[]float32{}
	for _, p := range m.Config.projections() {
		weight[p.name] = p.weight
	}
	for _, x := range modules {
		mat := weight[x.Name](&w.Layers[x.Layer])
		merged := append([]float32(nil), *mat...)
		addProduct(merged, a.Params[x.B:x.B+x.Out*x.Rank], a.Params[x.A:x.B], x.Rank, x.Scale)
		*mat = merged
	}
	w.alias(m.Config) // parts of fused projections follow them
	return &w, nil
}

// addProduct adds scale * B[out,r] * A[r,in] to w[out,in], in f64.
func addProduct(w, b, a []float32, r int, scale float64) {
	in := len(a) / r
	sum := make([]float64, in)
	for o := range len(b) / r {
		clear(sum)
		for k := range r {
			f := scale * float64(b[o*r+k])
			for i, v := range a[k*in : (k+1)*in] {
				sum[i] += f * float64(v)
			}
		}
		row := w[o*in : (o+1)*in]
		for i, v := range sum {
			row[i] = float32(float64(row[i]) + v)
		}
	}
}
