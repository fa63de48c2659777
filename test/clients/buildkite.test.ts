/**
 * The real agent of Buildkite against a stand-in for its API. It runs its jobs in real guests by the example of a bootstrap script. Only
 * `make clients` runs this file, because its first run compiles the agent.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { VM_CONFIGS } from '../../api/v1alpha1/resources.ts';
import { resolveCITools } from '../../hack/cluster/toolchain/toolchain.ts';
import { waitFor } from '../../hack/wait.ts';
import { BUILDKITE_SCRIPT } from '../fixtures/ciexamples.ts';
import { ShortLife, UNTIL_GONE } from '../support/shortlife.ts';
import { BerthCommand } from '../wires/berth.ts';
import { StartedProgram } from '../wires/startedprogram.ts';
import { BuildkiteStandIn } from '../worlds/buildkite.ts';
import { SET_UP_MILLISECONDS, World } from '../worlds/vm.ts';

let folder: string;
let world: World;
let command: BerthCommand;
let standIn: BuildkiteStandIn;
let program: string;
let life: ShortLife;
const agents: StartedProgram[] = [];

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-buildkite-'));
  ({ 'buildkite-agent': program } = await resolveCITools());
  world = await World.start({ name: 'buildkite', architecture: 'amd64', hosts: { host: '127.0.0.1' } });
  const metadata = { name: 'ci', namespace: world.vms.namespace };
  const spec = { image: 'guest', cpu: 1, memory: '256Mi' };
  await world.cluster.client().create(VM_CONFIGS, { metadata, spec });
  command = await BerthCommand.make(world.cluster.kubeconfig);
  standIn = await BuildkiteStandIn.start();
  life = await ShortLife.make(command, folder);
}, SET_UP_MILLISECONDS);

afterAll(async () => {
  for (const agent of agents) {
    agent.kill();
  }
  await standIn?.[Symbol.asyncDispose]();
  await command?.[Symbol.asyncDispose]();
  await world?.[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true });
});

function startAgent(): StartedProgram {
  const agent = new StartedProgram(
    program,
    standIn.startArguments(BUILDKITE_SCRIPT, join(folder, 'builds')),
    { ...life.environment, BERTH_CONFIG: 'ci' },
  );
  agents.push(agent);
  return agent;
}

async function runVMs(): Promise<string[]> {
  return (await world.vms.list()).map(({ metadata }) => metadata.name);
}

it('each job runs in a VM of its own, with its variables and exit code, and a job that is canceled ends its VM', async () => {
  const agent = startAgent();
  // Quotes, line breaks and names of variables arrive as they are.
  const WORD = `it's "two"\nlines $HOME`;
  const first = await standIn.run('one', 'echo "$WORD"\nexit 3', { WORD });
  expect(first).toMatchObject({ exitStatus: '3', log: expect.stringContaining(`${WORD}\n`) });
  const second = await standIn.run('two', 'echo "${BUILDKITE_AGENT_ACCESS_TOKEN-no token}"');
  expect(second).toMatchObject({ exitStatus: '0', log: expect.stringContaining('no token\n') });
  // The log has the progress of the VM.
  const names = [first, second].map(({ log }) => /run-\w+/.exec(log)?.[0]);
  expect(new Set(names).size).toBe(2);
  expect(names).not.toContain(undefined);
  standIn.give('three', 'echo begun; sleep 600');
  await standIn.logs('three', /^begun$/m);
  expect((await standIn.cancel('three')).exitStatus).not.toBe('0');
  await waitFor('no VM to be left', async () => (await runVMs()).length === 0);
  agent.kill();
  await agent.ended();
});

it('an agent that is killed in the middle of a job ends its VM; so does the operator if the command is killed too', async () => {
  for (const id of ['four', 'five']) {
    const agent = startAgent();
    standIn.give(id, 'echo begun; sleep 600');
    await standIn.logs(id, /^begun$/m);
    if (id === 'five') {
      await life.killLast();
    }
    agent.kill();
    await agent.ended();
    await waitFor('no VM to be left', async () => (await runVMs()).length === 0, UNTIL_GONE);
  }
});
