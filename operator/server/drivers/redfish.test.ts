import { once } from 'node:events';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { selfMadeCertificate } from '../../../kube/certificates/serving.ts';
import { createDriver } from './create.ts';
import type { Credentials, PowerDriver } from './driver.ts';

const CREDENTIALS: Credentials = { username: 'berth', password: 'pass-word' };
const TOKEN = Buffer.from('berth:pass-word').toString('base64');
const SYSTEM = '/redfish/v1/Systems/1';
const TARGET = `${SYSTEM}/Actions/Reset`;
/** Short, so that tests of slow controllers are quick, and long enough for a busy machine. */
const LIMIT_MILLISECONDS = 10_000;

interface Answer {
  status?: number;
  body?: unknown;
  headers?: Record<string, string>;
}

let server: Server;
let authority: string;
/** Answers by method and path. Others are answered with 404. */
let answers: Record<string, Answer>;
/** Received requests, with their bodies. */
let received: string[];

beforeAll(async () => {
  const pair = await selfMadeCertificate({ commonName: 'bmc', dnsNames: [], ipAddresses: ['127.0.0.1'] })();
  authority = pair.certificate;
  server = createServer({ cert: pair.certificate, key: pair.key }, (request, response) => {
    void text(request).then((body) => {
      const asked = `${request.method} ${request.url}`;
      received.push(`${asked} ${body}`.trim());
      expect(request.headers.authorization).toBe(`Basic ${TOKEN}`);
      const { status = 200, body: answer, headers = {} } = answers[asked] ?? { status: 404 };
      const content = typeof answer === 'string' ? answer : JSON.stringify(answer);
      response.writeHead(status, headers).end(content);
    });
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
});

afterAll(() => {
  server.closeAllConnections();
  server.close();
});

beforeEach(() => {
  received = [];
  answers = {};
});

function endpoint(): string {
  return `https://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

function driver(systemPath: string | undefined = SYSTEM): PowerDriver {
  const redfish = { endpoint: endpoint(), authority, ...(systemPath === '' ? {} : { systemPath }) };
  return createDriver({ redfish }, CREDENTIALS, LIMIT_MILLISECONDS);
}

function system(content: object): void {
  answers[`GET ${SYSTEM}`] = { body: content };
}

function reset(action: object, PowerState = 'On'): void {
  system({ PowerState, Actions: { '#ComputerSystem.Reset': action } });
  answers[`POST ${TARGET}`] = { status: 204 };
}

const sent = (): string | undefined => received.find((one) => one.startsWith('POST'));

it.each([
  ['On', 'On'],
  ['PoweringOff', 'On'],
  ['Off', 'Off'],
  ['PoweringOn', 'Off'],
])('PowerState %s is %s', async (state, power) => {
  system({ PowerState: state });
  await expect(driver().read()).resolves.toBe(power);
});

it.each([
  [{ PowerState: 'Paused' }, /^PowerState of the system at \S+ is "Paused"; one of On, .* was expected$/],
  [{ PowerState: 'on\u001b[2J' }, /is "on\\u001b\[2J"; one of/],
  [{ PowerState: ['On'] }, /is \["On"\]; one of/],
  [{}, /^PowerState of the system at \S+ is missing; one of/],
  [[], /is not valid: Invalid input: expected object, received array$/],
  ['[', /^The answer to GET \/redfish\/v1\/Systems\/1 at \S+ is not JSON$/],
])('the system %j is an error in words', async (content, message) => {
  answers[`GET ${SYSTEM}`] = { body: content };
  await expect(driver().read()).rejects.toMatchObject({
    reason: 'ControllerFailed',
    message: expect.stringMatching(message) as string,
  });
});

it('finds the only system of a controller', async () => {
  answers['GET /redfish/v1/Systems'] = { body: { Members: [{ '@odata.id': SYSTEM }] } };
  system({ PowerState: 'On' });
  await expect(driver('').read()).resolves.toBe('On');
  expect(received).toEqual(['GET /redfish/v1/Systems', `GET ${SYSTEM}`]);
});

it.each([
  [0, 'ControllerFailed', /has no systems$/],
  [2, 'ControllerInvalid', /has 2 systems; set spec\.controller\.redfish\.systemPath/],
])('a controller with %i systems is an error', async (count, reason, message) => {
  const members = Array.from({ length: count }, (_, index) => ({
    '@odata.id': `/redfish/v1/Systems/${index}`,
  }));
  answers['GET /redfish/v1/Systems'] = { body: { Members: members } };
  await expect(driver('').read()).rejects.toMatchObject({
    reason,
    message: expect.stringMatching(message) as string,
  });
});

it.each([
  ['On', undefined, 'On'],
  ['Off', undefined, 'ForceOff'],
  ['On', null, 'On'],
  ['On', ['ForceOn', 'ForceOff'], 'ForceOn'],
  ['Off', ['On', 'GracefulShutdown', 'PushPowerButton'], 'GracefulShutdown'],
  ['Off', ['On', 'PushPowerButton'], 'PushPowerButton'],
] as const)('%s with the reset types %j is %s', async (command, allowed, type) => {
  reset({ target: TARGET, 'ResetType@Redfish.AllowableValues': allowed });
  await driver().send(command);
  expect(sent()).toBe(`POST ${TARGET} {"ResetType":"${type}"}`);
});

it('reads the reset types from the document about the action', async () => {
  reset({ target: TARGET, '@Redfish.ActionInfo': `${SYSTEM}/ResetActionInfo` });
  answers[`GET ${SYSTEM}/ResetActionInfo`] = {
    body: { Parameters: [{ Name: 'ResetType', AllowableValues: ['ForceOn'] }] },
  };
  await driver().send('On');
  expect(sent()).toBe(`POST ${TARGET} {"ResetType":"ForceOn"}`);
});

it('a system without actions gets the standard path', async () => {
  const path = `${SYSTEM}/Actions/ComputerSystem.Reset`;
  system({ PowerState: 'Off' });
  answers[`POST ${path}`] = { status: 202 };
  await driver().send('On');
  expect(sent()).toBe(`POST ${path} {"ResetType":"On"}`);
});

it('does not push the button of a server that is off', async () => {
  reset({ target: TARGET, 'ResetType@Redfish.AllowableValues': ['PushPowerButton'] }, 'Off');
  await driver().send('Off');
  expect(sent()).toBeUndefined();
});

it('a controller without a fitting reset type gets no command', async () => {
  reset({ target: TARGET, 'ResetType@Redfish.AllowableValues': ['Nmi'] });
  await expect(driver().send('On')).rejects.toMatchObject({
    isRefusal: true,
    message: expect.stringMatching(
      /no reset type for On: it allows "Nmi", and On or ForceOn is needed$/,
    ) as string,
  });
  expect(sent()).toBeUndefined();
});

it.each([
  'https://192.0.2.1/redfish/v1/Systems/1/Actions/Reset',
  '//192.0.2.1/Reset',
  'http://127.0.0.1/Reset',
  'https://127.0.0.1:1/Reset',
])('the target %s on another server gets no command', async (target) => {
  reset({ target });
  await expect(driver().send('On')).rejects.toMatchObject({
    reason: 'ControllerFailed',
    isRefusal: true,
    message: `the target of Reset is "${target}", but it must be a path at ${endpoint()}`,
  });
  expect(sent()).toBeUndefined();
});

const EXTENDED = {
  error: {
    message: 'See the extended information',
    '@Message.ExtendedInfo': [
      { Message: 'The power\ncannot change.' },
      { Message: 7 },
      { Message: 'Fan open' },
    ],
  },
};

it.each([
  [400, EXTENDED, 'ControllerFailed', true, ': The power cannot change. Fan open'],
  [
    403,
    { error: { message: `No right for pass-word and ${TOKEN}` } },
    'CredentialsRefused',
    true,
    ': No right for *** and ***',
  ],
  [401, '', 'CredentialsRefused', true, ''],
  [
    500,
    { error: { message: `\u001b[31m${'x'.repeat(400)}` } },
    'ControllerFailed',
    false,
    `: [31m${'x'.repeat(296)}`,
  ],
  [503, { error: 'busy' }, 'ControllerFailed', true, ''],
  [502, '<html>', 'ControllerFailed', false, ''],
  [307, '', 'ControllerFailed', false, ', a redirect, which Berth does not follow'],
])(
  'the answer %i is an error with the words of the controller',
  async (status, body, reason, isRefusal, expected) => {
    reset({ target: TARGET });
    answers[`POST ${TARGET}`] = { status, body, headers: { location: `${endpoint()}/other` } };
    await expect(driver().send('Off')).rejects.toMatchObject({
      reason,
      isRefusal,
      message: `POST ${TARGET} at ${endpoint()} was answered with ${status}${expected}`,
    });
    expect(received).toHaveLength(2);
  },
);

it.each([
  [
    { endpoint: 'https://bmc/path' },
    CREDENTIALS,
    'ControllerInvalid',
    /^spec\.controller\.redfish\.endpoint is https:\/\/bmc\/path, but/,
  ],
  [{ endpoint: 'https://[x' }, CREDENTIALS, 'ControllerInvalid', /^spec\.controller\.redfish\.endpoint is/],
  [
    { endpoint: 'https://bmc', authority: '-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n' },
    CREDENTIALS,
    'ControllerInvalid',
    /^spec\.controller\.redfish\.authority has a certificate that cannot be read$/,
  ],
  [
    { endpoint: 'https://bmc' },
    { username: 'a:b', password: '' },
    'CredentialsMissing',
    /^The key username .* a colon/,
  ],
  [
    { endpoint: 'https://bmc' },
    { username: 'a', password: 'b\n' },
    'CredentialsMissing',
    /^The key password .* a line end$/,
  ],
])('%j cannot work', (redfish, credentials, reason, message) => {
  expect(() => createDriver({ redfish }, credentials)).toThrow(
    expect.objectContaining({ reason, message: expect.stringMatching(message) as string }),
  );
});
