//go:build !xla

package xla

import (
	"testing"

	"github.com/skein-rl/skein/model"
	"github.com/stretchr/testify/require"
)

func TestOpenWithoutXLA(t *testing.T) {
	_, err := Open(&model.Model{}, Options{})
	require.ErrorIs(t, err, ErrNotBuilt)
	require.ErrorContains(t, err, "-tags xla")
}
