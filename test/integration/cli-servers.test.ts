/** `berth server`: an administrator sees the power of servers and changes it, with the rights of the user alone. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { VMs } from '../fixtures/vms.ts';
import { accountToken, writeTokenKubeconfig } from '../support/members.ts';
import { BerthCommand, type CommandResult } from '../wires/berth.ts';
import { PoweredHosts } from '../worlds/poweredhosts.ts';

const [ONE, TWO] = ['powered-0', 'powered-1'] as const;
const BOOT_MILLISECONDS = 1_000;

let cluster: Cluster;
let operator: OperatorProcess;
let hosts: PoweredHosts;
let command: BerthCommand;
let vms: VMs;

beforeAll(async () => {
  cluster = await startCluster({ name: `cli-servers-${process.pid}` });
  hosts = await PoweredHosts.create(cluster, { count: 2, bootMilliseconds: BOOT_MILLISECONDS });
  operator = await cluster.startOperator({ config: { defaults: { architecture: 'arm64' } } });
  command = await BerthCommand.make(cluster.kubeconfig);
  vms = new VMs(cluster);
  const isReady = async () => (await berth('server', 'list')).out.match(/ On +True /g)?.length === 2;
  await waitFor('the operator to read the power', isReady);
});

afterAll(async () => {
  await command?.[Symbol.asyncDispose]();
  await operator?.stop();
  await hosts?.[Symbol.asyncDispose]();
  await cluster?.stop();
});

async function berth(...args: string[]): Promise<CommandResult> {
  return await command.run(args);
}

async function itemOf(name: string): Promise<Record<string, unknown>> {
  const { out } = await berth('server', 'get', name, '-o', 'json');
  return (JSON.parse(out) as Record<string, unknown>[])[0] ?? {};
}

describe('berth server', () => {
  it('lists servers with their power and host, and shows one for programs', async () => {
    const { out, code } = await berth('server', 'list');
    expect(code).toBe(0);
    expect(out.split('\n')[0]).toMatch(/^NAME +POWER +READY +REASON +NODE +IP +TYPE +LOCATION +AGE$/);
    expect(out).toMatch(/^powered-0 +On +True +powered-0 +10\.1\.0\.1 /m);
    expect(await itemOf(ONE)).toMatchObject({
      name: ONE,
      power: 'On',
      node: ONE,
      addresses: ['10.1.0.1'],
    });
  });

  it('switches servers off and on, and waits for what the controller confirms', async () => {
    expect(await berth('server', 'power', 'off', ONE, TWO)).toMatchObject({
      code: 0,
      out: `Carried out Off of server ${ONE}\nCarried out Off of server ${TWO}\n`,
    });
    expect(hosts.on).toEqual([]);
    expect(await itemOf(ONE)).toMatchObject({ power: 'Off', lastAction: { result: 'Succeeded' } });
    expect(await berth('server', 'power', 'on', ONE)).toMatchObject({ code: 0 });
    expect(await berth('server', 'wait', ONE, '--for', 'on')).toMatchObject({
      code: 0,
      out: `server ${ONE} is on\n`,
    });
    expect(hosts.on).toEqual([ONE]);
  });

  it('does not wait with --wait=false, and a later wait sees the result', async () => {
    const { code, out } = await berth('server', 'power', 'on', TWO, '--wait=false');
    expect([code, out]).toEqual([0, `Requested On of server ${TWO}\n`]);
    expect(await berth('server', 'wait', TWO, '--for', 'ON', '--timeout', '60s')).toMatchObject({ code: 0 });
    expect((await berth('server', 'wait', TWO, '--for', 'condition=Reachable')).code).toBe(0);
  });

  it('says why an action was refused', async () => {
    await vms.create('busy', { placement: { node: ONE } });
    await vms.waitForPhase('busy', 'Running', undefined, { deadlineMilliseconds: 60_000 });
    const { code, out, err } = await berth('server', 'power', 'off', ONE);
    expect([code, out]).toEqual([1, '']);
    expect(err).toBe(`error: Off of server ${ONE} was refused: 1 machine runs on host ${ONE}\n`);
    expect(hosts.isOn(ONE)).toBe(true);
  });

  it('ends with the exit codes of the other nouns', async () => {
    const late = await berth('server', 'wait', ONE, '--for', 'off', '--timeout', '1s');
    expect([late.code, late.err]).toEqual([5, `error: Server ${ONE} is not off after 1 s\n`]);
    const missing = await berth('server', 'get', 'powered-00');
    expect([missing.code, missing.err]).toEqual([
      4,
      `error: server "powered-00" not found. Did you mean ${ONE}?\n`,
    ]);
    const wrong = await berth('server', 'power', 'explode', ONE);
    expect([wrong.code, wrong.err]).toEqual([
      2,
      expect.stringContaining('Allowed choices are on, off, reboot'),
    ]);
    const goal = await berth('server', 'wait', ONE, '--for', 'rebooting');
    expect([goal.code, goal.err]).toEqual([
      2,
      expect.stringContaining('It must be on, off or condition=TYPE'),
    ]);
    const member = await accountToken(
      cluster,
      { namespace: 'platform-default', name: 'dev' },
      { role: 'berth-role-dev' },
    );
    const kubeconfig = await writeTokenKubeconfig(cluster, member, 'member');
    const denied = await command.run(['server', 'power', 'off', TWO], { kubeconfig });
    expect(denied.code).toBe(3);
    expect(hosts.isOn(TWO)).toBe(true);
  });
});
