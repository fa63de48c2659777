// Deploys, lists and deletes a VM with the client that oapi-codegen makes from the OpenAPI document.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"slices"
)

const name = "generated-go"

func main() {
	if err := run(context.Background(), os.Getenv("NAMESPACE")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, namespace string) error {
	client, err := newClient()
	if err != nil {
		return err
	}
	vmName, image, cpu := name, os.Getenv("IMAGE"), 1
	deployed, err := client.PostVmsWithResponse(ctx, namespace, nil, PostVmsJSONRequestBody{Name: &vmName, Image: &image, Cpu: &cpu})
	if err != nil {
		return err
	}
	if deployed.JSON200 == nil || deployed.JSON200.Name != name {
		return fmt.Errorf("deploy: %s: %s", deployed.Status(), deployed.Body)
	}
	list, err := client.GetVmsWithResponse(ctx, namespace, nil)
	if err != nil {
		return err
	}
	if list.JSON200 == nil || !slices.ContainsFunc(list.JSON200.Items, func(vm VM) bool { return vm.Name == name }) {
		return fmt.Errorf("list: %s: %s", list.Status(), list.Body)
	}
	deleted, err := client.DeleteVmsByNameWithResponse(ctx, namespace, name, nil)
	if err != nil {
		return err
	}
	if deleted.StatusCode() != http.StatusOK {
		return fmt.Errorf("delete: %s: %s", deleted.Status(), deleted.Body)
	}
	missing, err := client.DeleteVmsByNameWithResponse(ctx, namespace, "absent", nil)
	if err != nil {
		return err
	}
	fmt.Printf("%s %s, then %d\n", deployed.JSON200.Name, deployed.JSON200.Status, missing.StatusCode())
	return nil
}

func newClient() (*ClientWithResponses, error) {
	pem, err := os.ReadFile(os.Getenv("AUTHORITY"))
	if err != nil {
		return nil, err
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(pem)
	https := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authorities}}}
	authorized := func(_ context.Context, request *http.Request) error {
		request.Header.Set("Authorization", "Bearer "+os.Getenv("TOKEN"))
		return nil
	}
	return NewClientWithResponses(os.Getenv("URL"), WithHTTPClient(https), WithRequestEditorFn(authorized))
}
