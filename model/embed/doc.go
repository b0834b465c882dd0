// Package embed turns texts into vectors with a sentence encoder: a BERT
// (Devlin et al. 2018, arXiv:1810.04805) with pooling and normalisation as a
// sentence-transformers directory lays them down (Reimers & Gurevych 2019,
// arXiv:1908.10084), for example all-MiniLM-L6-v2.
//
// It computes in float32 on the kernels of the pure-Go backend. Sequences are
// packed without padding, and a text's vector has the same bits whatever is
// encoded beside it.
package embed
