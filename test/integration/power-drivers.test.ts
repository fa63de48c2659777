/** The contract of the drivers, with controllers as in life: Redfish over TLS, IPMI over lanplus, and URLs over TLS. */
import { getCACertificates, setDefaultCACertificates } from 'node:tls';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { type Authority, createAuthority } from '../../hack/cluster/authority.ts';
import { waitFor } from '../../hack/wait.ts';
import { createDriver } from '../../operator/server/drivers/create.ts';
import type { PowerError } from '../../operator/server/drivers/driver.ts';
import {
  CREDENTIALS,
  type PowerWorld,
  type PowerWorldOptions,
  startIpmi,
  startRedfish,
  startWebhook,
} from '../worlds/powercontrollers.ts';

/** Time limit for calls of controllers that do not answer. The others have the limit of the product. */
const SHORT_MILLISECONDS = 1_000;
/** Longest time between the limit of a call and its end, on a busy machine. */
const SLACK_MILLISECONDS = 5_000;
const WRONG = { ...CREDENTIALS, password: 'wrong' };

const trusted = getCACertificates('default');
let authority: Authority;

beforeAll(async () => {
  authority = await createAuthority('berth power');
  // As NODE_EXTRA_CA_CERTS does it. The URLs of a webhook have no authority of their own.
  setDefaultCACertificates([...trusted, authority.certificate]);
});

afterAll(() => setDefaultCACertificates(trusted));

async function errorOf(work: Promise<unknown>): Promise<Partial<PowerError>> {
  const error = await work.then(
    (value) => new Error(`expected an error, got ${String(value)}`),
    (reason: unknown) => reason,
  );
  const { reason, isRefusal, message } = error as PowerError;
  return { reason, isRefusal, message };
}

const ways = {
  Redfish: {
    start: startRedfish,
    wrong: /was answered with 401: Incorrect username or password$/,
    away: /the connection failed \(ECONNREFUSED\)$/,
    late: /no complete answer came within 1 s$/,
    // The driver reads the system first, so no command was sent.
    isLateRefused: true,
  },
  IPMI: {
    start: startIpmi,
    wrong: /RAKP 2 HMAC is invalid; Unable to establish IPMI v2 \/ RMCP\+ session$/,
    away: /Unable to establish IPMI v2 \/ RMCP\+ session$/,
    late: /no answer came within 1 s$/,
    isLateRefused: false,
  },
  webhook: {
    start: startWebhook,
    wrong: /^\w+ to spec\.controller\.webhook\.\w+URL at \S+ was answered with 401$/,
    away: /the connection failed \(ECONNREFUSED\)$/,
    late: /no complete answer came within 1 s$/,
    isLateRefused: false,
  },
} as const;

describe.each(Object.entries(ways))('a controller with %s', (_, { start, ...expected }) => {
  let world: PowerWorld | undefined;

  async function started(options: Partial<PowerWorldOptions> = {}): Promise<PowerWorld> {
    world = await start({ authority, ...options });
    return world;
  }

  afterEach(async () => {
    await world?.[Symbol.asyncDispose]();
    world = undefined;
  });

  it('tells the power, accepts commands, and confirms them by its own answer', async () => {
    const { controller } = await started();
    const driver = createDriver(controller, CREDENTIALS);
    expect(driver.canReboot).toBe(false);
    await expect(driver.read()).resolves.toBe('Off');
    // A command for the power that is already there is no error.
    for (const power of ['Off', 'On', 'On', 'Off'] as const) {
      await driver.send(power);
      await waitFor(`the power ${power}`, async () => (await driver.read()) === power);
    }
  });

  it('refuses a wrong password, and does nothing', async () => {
    const { controller } = await started();
    const driver = createDriver(controller, WRONG);
    const refusal = {
      reason: 'CredentialsRefused',
      isRefusal: true,
      message: expect.stringMatching(expected.wrong) as string,
    };
    expect(await errorOf(driver.read())).toEqual(refusal);
    expect(await errorOf(driver.send('On'))).toEqual(refusal);
    await expect(createDriver(controller, CREDENTIALS).read()).resolves.toBe('Off');
  });

  it('can be away', async () => {
    const { controller, stop } = await started();
    await stop();
    const driver = createDriver(controller, CREDENTIALS);
    const absence = {
      reason: 'ControllerUnreachable',
      isRefusal: true,
      message: expect.stringMatching(expected.away) as string,
    };
    expect(await errorOf(driver.read())).toEqual(absence);
    expect(await errorOf(driver.send('On'))).toEqual(absence);
  });

  it('can be too slow, and answers again later', async () => {
    const { controller, freeze, thaw } = await started();
    const driver = createDriver(controller, CREDENTIALS, SHORT_MILLISECONDS);
    await freeze();
    const late = {
      reason: 'ControllerUnreachable',
      message: expect.stringMatching(expected.late) as string,
    };
    const began = performance.now();
    expect(await errorOf(driver.read())).toEqual({ ...late, isRefusal: true });
    expect(await errorOf(driver.send('On'))).toEqual({ ...late, isRefusal: expected.isLateRefused });
    expect(performance.now() - began).toBeLessThan(2 * SHORT_MILLISECONDS + SLACK_MILLISECONDS);
    await thaw();
    await expect(createDriver(controller, CREDENTIALS).read()).resolves.toMatch(/^(On|Off)$/);
  });

  it('can lie: it accepts, and its own answer stays', async () => {
    const { controller } = await started({ lies: true });
    const driver = createDriver(controller, CREDENTIALS);
    await driver.send('On');
    await expect(driver.read()).resolves.toBe('Off');
  });
});

describe.each([
  ['Redfish', startRedfish],
  ['webhook', startWebhook],
] as const)('the certificate of a controller with %s', (_, start) => {
  it('must have the name of the controller', async () => {
    await using world = await start({ authority, otherName: 'other.example' });
    const refusal = {
      reason: 'CertificateRefused',
      isRefusal: true,
      message: expect.stringMatching(
        /the certificate is not trusted: Hostname\/IP does not match certificate's altnames: IP: 127\.0\.0\.1 is not in the cert's list:$/,
      ) as string,
    };
    const driver = createDriver(world.controller, CREDENTIALS);
    expect(await errorOf(driver.read())).toEqual(refusal);
    expect(await errorOf(driver.send('On'))).toEqual(refusal);
  });

  it('must be of a trusted authority', async () => {
    const stranger = await createAuthority('stranger');
    await using world = await start({ authority: stranger });
    const { redfish, webhook } = world.controller;
    // The controller has the certificate of a stranger, and Berth trusts another authority.
    const controller =
      redfish === undefined ? { webhook } : { redfish: { ...redfish, authority: authority.certificate } };
    const driver = createDriver(controller, CREDENTIALS);
    expect(await errorOf(driver.send('On'))).toMatchObject({ reason: 'CertificateRefused', isRefusal: true });
    if (redfish !== undefined) {
      const careless = createDriver(
        { redfish: { ...redfish, authority: authority.certificate, insecureSkipVerify: true } },
        CREDENTIALS,
      );
      await expect(careless.read()).resolves.toBe('Off');
    }
  });
});
