/** Objects by which the API server passes the requests for a group of its API to a server on the loopback address. */

export interface LoopbackGroup {
  readonly group: string;
  readonly version: string;
  /** Name of the Service. */
  readonly name: string;
  readonly namespace: string;
  readonly port: number;
}

/** Returns the Service and the APIService. The certificate of the server is not checked, because the server makes it itself. */
export function loopbackAPIService({ group, version, name, namespace, port }: LoopbackGroup): object[] {
  const metadata = { name, namespace };
  return [
    // Endpoints cannot have a loopback address, but an external name can resolve to one.
    {
      apiVersion: 'v1',
      kind: 'Service',
      metadata,
      spec: { type: 'ExternalName', externalName: 'localhost', ports: [{ port }] },
    },
    {
      apiVersion: 'apiregistration.k8s.io/v1',
      kind: 'APIService',
      metadata: { name: `${version}.${group}` },
      spec: {
        group,
        version,
        groupPriorityMinimum: 100,
        versionPriority: 100,
        insecureSkipTLSVerify: true,
        service: { ...metadata, port },
      },
    },
  ];
}
