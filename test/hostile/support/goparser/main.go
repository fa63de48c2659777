// Command goparser says what Go reads in certificate requests and certificates, as the API server and its signer do.
// It reads from standard input one JSON object for each line, {"kind": "request" or "certificate", "pem": base64 of the
// PEM}, and writes one for each, in the same order: what was read, or the error.
package main

import (
	"bufio"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"os"

	"crypto/x509/pkix"
)

// Longest line that is read: far beyond what the tests write.
const maximumLine = 16 << 20

type input struct {
	Kind string `json:"kind"`
	PEM  []byte `json:"pem"`
}

type output struct {
	Error         string   `json:"error,omitempty"`
	CommonName    string   `json:"commonName"`
	Organizations []string `json:"organizations"`
	DNSNames      []string `json:"dnsNames"`
	IPAddresses   []string `json:"ipAddresses"`
	Others        []string `json:"others"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, maximumLine)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var in input
		if err := json.Unmarshal(lines.Bytes(), &in); err != nil {
			panic(err)
		}
		out, err := read(in)
		if err != nil {
			out = output{Error: err.Error()}
		}
		if err := answers.Encode(out); err != nil {
			panic(err)
		}
	}
	if err := lines.Err(); err != nil {
		panic(err)
	}
}

func read(in input) (output, error) {
	block, _ := pem.Decode(in.PEM)
	if block == nil {
		return output{}, errors.New("no PEM block")
	}
	if in.Kind == "certificate" {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return output{}, err
		}
		return answer(certificate.Subject, certificate.DNSNames, certificate.IPAddresses, certificate.EmailAddresses, certificate.URIs), nil
	}
	// As in pkg/apis/certificates of Kubernetes: ParseCSR, then CheckSignature.
	if block.Type != "CERTIFICATE REQUEST" {
		return output{}, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return output{}, err
	}
	if err := request.CheckSignature(); err != nil {
		return output{}, err
	}
	return answer(request.Subject, request.DNSNames, request.IPAddresses, request.EmailAddresses, request.URIs), nil
}

func answer(subject pkix.Name, dnsNames []string, ips []net.IP, emails []string, uris []*url.URL) output {
	out := output{
		CommonName:    subject.CommonName,
		Organizations: append([]string{}, subject.Organization...),
		DNSNames:      append([]string{}, dnsNames...),
		IPAddresses:   []string{},
		Others:        append([]string{}, emails...),
	}
	for _, ip := range ips {
		out.IPAddresses = append(out.IPAddresses, ip.String())
	}
	for _, uri := range uris {
		out.Others = append(out.Others, uri.String())
	}
	// What is left of the subject: nothing else may be in it.
	for _, part := range subject.Names {
		if kind := part.Type.String(); kind != "2.5.4.3" && kind != "2.5.4.10" {
			out.Others = append(out.Others, kind)
		}
	}
	return out
}
