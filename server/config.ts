/**
 * Configuration of the HTTP API: one YAML file, which is checked at start. An error lists every mistake, with the path of the wrong field.
 */
import * as z from 'zod';
import {
  areFilesTogether,
  certificateFields,
  checkConfig,
  FILES_TOGETHER,
  logLevelSchema,
  readConfig,
} from '../base/config.ts';
import { DEFAULT_NAMESPACE, NAMESPACE_PREFIX, SYSTEM_NAMESPACE } from '../api/v1alpha1/names.ts';

const httpsURL = z.url({ protocol: /^https$/ });

/** Names and a status code that are fixed in the code of some clients. With these settings, such clients can use this installation. */
const aliasesSchema = z
  .strictObject({
    /**
     * Prefix of namespaces that clients send instead of `namespaces.prefix`. If a request contains this prefix, the answer to it also
     * contains this prefix.
     */
    namespacePrefix: z.string().min(1).optional(),
    /** Name that clients send in a path instead of the name of the RoleBinding for the role dev. */
    devRoleBinding: z.string().min(1).optional(),
    /**
     * Status code of the answer to a deployment that fails because no host has room. This field also decides about requests without the
     * parameter `whenFull`. If the field is absent, such a request waits until a host has room. If the field is set, such a request fails
     * immediately when no host has room.
     */
    fullClusterStatus: z.int().min(400).max(599).optional(),
  })
  .prefault({});

const httpSchema = z
  .strictObject({
    /** Address to listen on: `HOST:PORT`, or `:PORT` for all addresses. */
    address: z.string().default(':8443'),
    /**
     * Whether clients use TLS. If not, another program must encrypt the connections, because otherwise everybody on the network can read
     * the tokens of clients.
     */
    tls: z.boolean().default(true),
    ...certificateFields(['berth-server.berth-system.svc', 'localhost']),
    aliases: aliasesSchema,
  })
  .refine(areFilesTogether, FILES_TOGETHER)
  .prefault({});

/** Facts about the cluster that clients read before they sign in. */
const clusterSchema = z
  .strictObject({
    /** URL of the Kubernetes API for clients outside the cluster. The default is the URL that the server itself uses. */
    apiEndpoint: httpsURL.optional(),
    /**
     * Certificate of the authority that signed the certificate of the Kubernetes API, as PEM text. Empty if this authority is a public one.
     * The default is the certificate with which the server itself checks the Kubernetes API.
     */
    certificateAuthority: z
      .string()
      .regex(/^$|-----BEGIN CERTIFICATE-----/, 'must be a certificate as PEM text, or empty')
      .optional(),
    /** OIDC issuer of the users. If it is absent, users can sign in only with tokens of service accounts. */
    issuer: httpsURL.optional(),
    /** Client ID of the `berth` command at the issuer. */
    clientID: z.string().default('berth'),
    scopes: z.array(z.string()).default(['openid', 'email', 'groups']),
    /** Whether the issuer offers the device flow. */
    deviceFlow: z.boolean().default(true),
  })
  .prefault({});

/** The power API: a second port that lists Servers and switches them on and off. It uses the certificate of the HTTP API. */
const powerSchema = z
  .strictObject({
    enabled: z.boolean().default(false),
    /** Address to listen on: `HOST:PORT`, or `:PORT` for all addresses. */
    address: z.string().default(':8444'),
    /**
     * Networks of the proxies whose header `X-Forwarded-For` names the caller. Failed sign-ins are counted by the address of the caller. If a
     * proxy is not in this list, all its callers count as one.
     */
    trustedProxies: z
      .array(z.union([z.cidrv4(), z.cidrv6()]))
      .max(64)
      .default([]),
    /** Lock-out of an address (of a /64 network, for IPv6) that sends wrong credentials. */
    lockout: z
      .strictObject({
        /** Number of requests with wrong credentials after which an address gets no answer. */
        failures: z.int().min(1).max(1_000).default(20),
        /** Time in seconds for which it gets no answer, and after which earlier failures are forgotten. */
        seconds: z.int().min(1).max(86_400).default(300),
      })
      .prefault({}),
  })
  .prefault({});

/**
 * Names of Services, with the domain of any cluster, and addresses of this machine. The administrator who writes such a name answers for its domain.
 * No token goes to a Service without TLS.
 */
const NEAR = /^(?:localhost|127(?:\.\d{1,3}){3}|\[::1\]|(?:[^.]+\.){2}svc(?:\..+)?)$/;
const LOOPBACK = /^(?:localhost|127\..*|\[::1\])$/;

/** Prometheus, from which the console reads how long jobs waited and ran. Without it, the console shows what the operator keeps. */
const prometheusSchema = z
  .strictObject({
    /**
     * Address of Prometheus, or of a program that answers its queries. It has the scheme https, or http for loopback addresses and for the names
     * of Services (`NAME.NAMESPACE.svc`). It can have a path.
     */
    address: z
      .url({ protocol: /^https?$/, error: 'must be a URL with https or http' })
      .max(1_024)
      .refine(
        (text) => {
          const url = URL.parse(text);
          return (
            url !== null && [url.username, url.password, url.search, url.hash].every((part) => part === '')
          );
        },
        { error: 'must have no user, no query and no fragment' },
      )
      .refine((text) => isOver('https:', text) || NEAR.test(URL.parse(text)?.hostname ?? ''), {
        error: 'must use https, because only loopback addresses and names NAME.NAMESPACE.svc may use http',
      }),
    /** File with the certificates of the authorities that sign the certificate of Prometheus, as PEM. The default is the public authorities. */
    caFile: z.string().min(1).optional(),
    /** File with a bearer token. The server reads it again for each request. */
    tokenFile: z.string().min(1).optional(),
    /** Labels that Prometheus itself adds to the metrics of the operator, by which it tells them from those of other programs and clusters. */
    labels: z
      .record(z.string().regex(/^[a-zA-Z_]\w*$/, 'must be the name of a label'), z.string().max(256))
      .refine((labels) => Object.keys(labels).length <= 8, { error: 'must have at most 8 labels' })
      .refine((labels) => !['vm_namespace', 'le'].some((name) => name in labels), {
        error: 'must not contain vm_namespace or le, which the server sets',
      })
      .default({}),
  })
  .refine(({ address, caFile }) => caFile === undefined || isOver('https:', address), {
    path: ['caFile'],
    error: 'must be absent, because prometheus.address uses http',
  })
  .refine(
    ({ address, tokenFile }) =>
      tokenFile === undefined ||
      isOver('https:', address) ||
      LOOPBACK.test(URL.parse(address)?.hostname ?? ''),
    {
      path: ['tokenFile'],
      error: 'must be absent, because prometheus.address uses http, and others could read the token',
    },
  );
export type PrometheusConfig = z.infer<typeof prometheusSchema>;

function isOver(protocol: string, address: string): boolean {
  return URL.parse(address)?.protocol === protocol;
}

export const configSchema = z
  .strictObject({
    http: httpSchema,
    power: powerSchema,
    cluster: clusterSchema,
    namespaces: z
      .strictObject({
        system: z.string().default(SYSTEM_NAMESPACE),
        default: z.string().default(DEFAULT_NAMESPACE),
        prefix: z.string().min(1).default(NAMESPACE_PREFIX),
      })
      .prefault({}),
    prometheus: prometheusSchema.optional(),
    /** Largest DPI of a display. It must be the same maximum as in the installed CRDs. */
    dpiMaximum: z.union([z.literal(240), z.literal(320)]).default(240),
    metrics: z.strictObject({ address: z.string().default(':9443') }).prefault({}),
    health: z.strictObject({ address: z.string().default(':8081') }).prefault({}),
    logLevel: logLevelSchema.default('info'),
  })
  .refine(
    ({
      http: {
        aliases: { namespacePrefix: alias },
      },
      namespaces: { prefix },
    }) => alias === undefined || !(alias.startsWith(prefix) || prefix.startsWith(alias)),
    {
      path: ['http', 'aliases', 'namespacePrefix'],
      error: 'must differ from namespaces.prefix, and neither may begin with the other',
    },
  );

export type ServerConfig = z.infer<typeof configSchema>;

/**
 * Reads and checks the file. Without a file, returns the defaults.
 * @throws ConfigError when the file cannot be read or is not valid; the error lists every mistake.
 */
export function loadConfig(path: string | undefined): ServerConfig {
  return checkConfig(configSchema, path === undefined ? {} : readConfig(path), path ?? 'configuration');
}
