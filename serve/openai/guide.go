package openai

import "github.com/skein-rl/skein/model"

type guideFunc = func() (model.Constraint, error)

func (h *Handler) guideOf(s *Structured) (guideFunc, error) {
	if s == nil {
		return nil, nil
	}
	return nil, badRequest("structured_outputs", "pending")
}

func (h *Handler) chatGuide(req *ChatRequest, p params, mode, name string, v *turnView) (guideFunc, error) {
	return h.guideOf(p.guide)
}
