import { expect, it } from 'vitest';
import { configSchema } from './config.ts';
import { clusterInfo } from './cluster.ts';

const PEM = (text: string) => `-----BEGIN CERTIFICATE-----\n${text}\n-----END CERTIFICATE-----\n`;

it('shows the own connection, with its port, the name in the certificate and one certificate', () => {
  const info = clusterInfo(configSchema.parse({}), {
    server: 'https://[fd00::1]:6443',
    serverName: 'kubernetes.default.svc',
    certificateAuthority: PEM('one') + PEM('two'),
  });
  expect(info).toMatchObject({
    apiEndpoint: 'https://[fd00::1]:6443',
    apiDomain: 'kubernetes.default.svc',
    certData: PEM('one'),
    baseOauthEndpoint: '',
    gpuPassthroughEnabled: false,
    deviceFlow: false,
    namespaceDefault: 'platform-default',
  });
});

it('shows the configured address and issuer', () => {
  const cluster = {
    apiEndpoint: 'https://api.example/',
    issuer: 'https://login.example',
    clientID: 'berth-cli',
  };
  const info = clusterInfo(configSchema.parse({ cluster }), {
    server: 'https://10.0.0.1:443',
    serverName: 'kubernetes.default.svc',
  });
  expect(info).toMatchObject({
    apiEndpoint: 'https://api.example:443',
    apiDomain: 'api.example',
    certData: '',
    appClientId: 'berth-cli',
    baseOauthEndpoint: 'https://login.example',
    issuer: 'https://login.example',
    deviceFlow: true,
  });
});

it('keeps the path under which a proxy serves the cluster', () => {
  const config = configSchema.parse({ cluster: { apiEndpoint: 'https://proxy.example/k8s/clusters/a/' } });
  const info = clusterInfo(config, { server: 'https://10.0.0.1' });
  expect(info).toMatchObject({
    apiEndpoint: 'https://proxy.example:443/k8s/clusters/a',
    apiDomain: 'proxy.example',
  });
});

it.each([
  ['the configured authority', PEM('other'), PEM('other')],
  ['none for a public authority', '', ''],
  ['the authority of the server when none is configured', undefined, PEM('own')],
])('shows %s', (_, certificateAuthority, shown) => {
  const config = configSchema.parse({
    cluster: { apiEndpoint: 'https://api.example', certificateAuthority },
  });
  const info = clusterInfo(config, { server: 'https://10.0.0.1', certificateAuthority: PEM('own') });
  expect(info.certData).toBe(shown);
});
