/** Schema of the facts about the cluster that clients read before they sign in. */
import * as z from 'zod';

export const clusterInfoSchema = z
  .object({
    apiEndpoint: z.string().meta({
      description:
        'URL of the Kubernetes API with its port, for example https://api.example:6443. It has a path only if a proxy serves the API under this path.',
    }),
    apiDomain: z.string().meta({ description: 'Host name in the certificate of the Kubernetes API.' }),
    certData: z.string().meta({
      description:
        'Certificate of the authority that signed the certificate of the Kubernetes API, as PEM text. Empty if this authority is a public one.',
    }),
    appClientId: z.string().meta({ description: 'Client ID of the berth command at the identity provider.' }),
    baseOauthEndpoint: z
      .string()
      .meta({ description: 'URL of the identity provider. Empty if there is no identity provider.' }),
    gpuPassthroughEnabled: z.boolean(),
    issuer: z.string().optional().meta({ description: 'Issuer of the OIDC tokens of users.' }),
    scopes: z.array(z.string()).meta({ description: 'OIDC scopes that the berth command asks for.' }),
    deviceFlow: z.boolean().meta({ description: 'Whether the identity provider offers the device flow.' }),
    version: z.string().meta({ description: 'Version of Berth.' }),
    namespaceDefault: z.string().meta({ description: 'Namespace of requests that do not name a namespace.' }),
  })
  .meta({ id: 'ClusterInfo', description: 'Facts about the cluster, for signing in.' });
export type ClusterInfo = z.infer<typeof clusterInfoSchema>;
