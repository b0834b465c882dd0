package table

import "math/bits"

// Draw is the chance of a table: number n of a seed is a hash of both, so that
// the counter is all the state there is. It is splitmix64 (Steele, Lea, Flood
// 2014) started at the seed.
type Draw struct {
	Seed uint64
	N    uint64 // numbers drawn so far; the caller keeps it
}

func (d *Draw) next() uint64 {
	d.N++
	x := d.Seed + d.N*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Below returns a number in [0, n), n > 0. The bias is under n/2^64.
func (d *Draw) Below(n uint64) uint64 {
	hi, _ := bits.Mul64(d.next(), n)
	return hi
}
