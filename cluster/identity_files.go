package cluster

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// ErrNoIdentity: the directory holds no certificate yet; join first.
var ErrNoIdentity = errors.New("cluster: no identity")

// errExpired: the certificate's time is over; a replay node signs itself a new
// one, everybody else joins again.
var errExpired = errors.New("certificate expired")

// save writes the identity into dir, keys with mode 0600.
func (id *Identity) save(dir string) error {
	if err := writePEM(dir, fileCACert, "CERTIFICATE", id.ca.Raw); err != nil {
		return err
	}
	if id.caKey != nil {
		if err := writeKey(dir, fileCAKey, id.caKey); err != nil {
			return err
		}
		if err := id.secret.save(dir); err != nil {
			return err
		}
	}
	// The certificate comes last: LoadIdentity takes its presence as "whole".
	return id.saveLeaf(dir, id.cert.Load().PrivateKey.(*ecdsa.PrivateKey), id.leaf().Raw)
}

// saveLeaf replaces key and certificate. A crash between the steps leaves the
// old pair, or the new certificate with its key under fileNextKey.
func (id *Identity) saveLeaf(dir string, key *ecdsa.PrivateKey, leaf []byte) error {
	if err := writeKey(dir, fileNextKey, key); err != nil {
		return err
	}
	if err := writePEM(dir, fileNodeCert, "CERTIFICATE", leaf); err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir, fileNextKey), filepath.Join(dir, fileNodeKey))
}

// LoadIdentity reads the certificate of an earlier Join or first start.
// ErrNoIdentity when there is none.
func LoadIdentity(dir string) (*Identity, error) {
	fail := func(name string, err error) (*Identity, error) {
		return nil, fmt.Errorf("cluster: identity in %s: file %s: %w; restore it, or join again with an empty directory",
			dir, name, err)
	}
	leaf, err := readPEM(filepath.Join(dir, fileNodeCert))
	if err != nil {
		return fail(fileNodeCert, err)
	}
	if leaf == nil {
		return nil, fmt.Errorf("%w in %s: join the cluster with its address and token", ErrNoIdentity, dir)
	}
	id := &Identity{}
	if id.ca, err = readCert(dir, fileCACert); err != nil {
		return fail(fileCACert, err)
	}
	if err := id.loadLeaf(dir, leaf); err != nil {
		return fail(fileNodeKey, err)
	}
	if id.Role == RoleReplay {
		if id.caKey, err = readKey(dir, fileCAKey); err != nil {
			return fail(fileCAKey, err)
		}
		if err := id.secret.load(dir); err != nil {
			return fail(fileToken, err)
		}
	}
	if now := time.Now(); now.After(id.Expires()) {
		if id.caKey == nil {
			return nil, fmt.Errorf("cluster: certificate of %s in %s: %w on %s: join again with the cluster's token",
				id.ID, dir, errExpired, id.Expires().Format(time.DateOnly))
		}
		return id, id.renewSelf(dir)
	}
	return id, nil
}

// loadLeaf takes the key that fits the certificate.
func (id *Identity) loadLeaf(dir string, leaf []byte) error {
	if next, err := readKey(dir, fileNextKey); err == nil && id.setLeaf(leaf, next) == nil {
		return os.Rename(filepath.Join(dir, fileNextKey), filepath.Join(dir, fileNodeKey))
	}
	key, err := readKey(dir, fileNodeKey)
	if err != nil {
		return err
	}
	return id.setLeaf(leaf, key)
}

func writeKey(dir, name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(dir, name, "EC PRIVATE KEY", der)
}

func writePEM(dir, name, kind string, der []byte) error {
	return writeFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

func readKey(dir, name string) (*ecdsa.PrivateKey, error) {
	der, err := needPEM(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	return x509.ParseECPrivateKey(der)
}

func readCert(dir, name string) (*x509.Certificate, error) {
	der, err := needPEM(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func readPEM(path string) ([]byte, error) {
	b, err := readFile(path)
	if b == nil || err != nil {
		return nil, err
	}
	blk, _ := pem.Decode(b)
	if blk == nil {
		return nil, errors.New("not PEM")
	}
	return blk.Bytes, nil
}

func needPEM(path string) ([]byte, error) {
	b, err := readPEM(path)
	if err == nil && b == nil {
		err = errors.New("missing")
	}
	return b, err
}
