/** A master and a worker of Buildbot, as programs of this computer, and a repository with a branch for each build. */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../../base/exec.ts';
import { freePort } from '../../hack/cluster/ports.ts';
import { pythonWith } from '../../hack/python/install.ts';
import { waitFor } from '../../hack/wait.ts';
import { BUILDBOT_CONFIG } from '../fixtures/ciexamples.ts';
import { StartedProgram } from '../wires/startedprogram.ts';

/** Time limit of a program that makes files or sends one message. */
const PROGRAM_MILLISECONDS = 120_000;
/** Time limit of a build in an emulated guest. */
const BUILD = { deadlineMilliseconds: 240_000, intervalMilliseconds: 500 };
const PASSWORDS = { WORKER_PASSWORD: 'of-the-worker', CHANGES_PASSWORD: 'of-changes' } as const;
/** Logs that the master stores as plain text, so that the test can read them. */
const PLAIN_LOGS = `c['logCompressionMethod'] = 'raw'`;
/** Prints the builds with the logs of their jobs, as the master has stored them. The values of properties are JSON. */
const READ = `
import json, sqlite3, sys
db = sqlite3.connect(f'file:{sys.argv[1]}?mode=ro', uri=True)
rows = db.execute('''
  select p.value, b.results, (select group_concat(k.content, char(10)) from steps s
    join logs l on l.stepid = s.id join logchunks k on k.logid = l.id where s.buildid = b.id and s.name = 'job')
  from builds b join build_properties p on p.buildid = b.id and p.name = 'branch' order by b.id''')
def text(log):
    # Each line begins with a letter for its stream.
    return '\\n'.join(line[1:] for line in (log.decode() if isinstance(log, bytes) else log or '').split('\\n'))
print(json.dumps([{'branch': json.loads(branch), 'results': results, 'log': text(log)} for branch, results, log in rows]))
`;

/** Result of a build in Buildbot. It is null while the build runs. */
export const RESULTS = { success: 0, failure: 2, retry: 5 } as const;

/** Programs in the order of their starts, with the line of their logs that says that they are ready. */
const PROGRAMS = [
  ['master', 'buildbot', /BuildMaster is running/],
  ['worker', 'buildbot-worker', /Connected to buildmaster/],
] as const;
type ProgramName = (typeof PROGRAMS)[number][0];

interface Build {
  readonly branch: string;
  readonly results: number | null;
  readonly log: string;
}

export class BuildbotSite {
  readonly #folder: string;
  readonly #environment: NodeJS.ProcessEnv;
  readonly #python: string;
  readonly #port: number;
  readonly #running = new Map<ProgramName, StartedProgram>();

  private constructor(folder: string, environment: NodeJS.ProcessEnv, python: string, port: number) {
    this.#folder = folder;
    this.#environment = environment;
    this.#python = python;
    this.#port = port;
  }

  /** Makes master, worker and repository in the folder. `environment` is that of both programs: it has \`berth\`. */
  static async make(folder: string, environment: NodeJS.ProcessEnv): Promise<BuildbotSite> {
    const python = await pythonWith('buildbot');
    const port = await freePort();
    const variables = {
      ...environment,
      ...python.environment,
      ...PASSWORDS,
      PATH: `${python.environment['PYTHONPATH']}/bin:${environment['PATH']}`,
      PORT: `tcp:${port}:interface=127.0.0.1`,
      REPOSITORY: join(folder, 'repository'),
      HOME: folder,
    };
    const site = new BuildbotSite(folder, variables, python.program, port);
    await site.#prepare();
    return site;
  }

  async #prepare(): Promise<void> {
    await this.#run('git', 'init', '-q', join(this.#folder, 'repository'));
    await this.#run('buildbot', 'create-master', '--quiet', 'master');
    const config = `exec(compile(open(${JSON.stringify(BUILDBOT_CONFIG)}).read(), 'master.cfg', 'exec'))\n${PLAIN_LOGS}\n`;
    await writeFile(join(this.#folder, 'master', 'master.cfg'), config);
    const at = `127.0.0.1:${this.#port}`;
    await this.#run(
      'buildbot-worker',
      'create-worker',
      '--quiet',
      'worker',
      at,
      'vms',
      PASSWORDS.WORKER_PASSWORD,
    );
  }

  /** Starts the programs that do not run, and resolves when the worker is connected. */
  async start(): Promise<void> {
    for (const [name, program, says] of PROGRAMS) {
      if (!this.#running.has(name)) {
        const before = (await this.#log(name)).length;
        const started = new StartedProgram(
          program,
          ['start', '--nodaemon', join(this.#folder, name)],
          this.#environment,
        );
        this.#running.set(name, started);
        await waitFor(
          `the ${name} to start`,
          async () => says.test((await this.#log(name)).slice(before)),
          BUILD,
        );
      }
    }
  }

  /** Kills a program with SIGKILL. */
  async kill(name: ProgramName): Promise<void> {
    const program = this.#running.get(name);
    program?.kill();
    await program?.ended();
    this.#running.delete(name);
  }

  async #log(name: ProgramName): Promise<string> {
    return await readFile(join(this.#folder, name, 'twistd.log'), 'utf8').catch(() => '');
  }

  /** Writes the script of a branch. Its builds run the script in a VM. */
  async commit(branch: string, script: string): Promise<void> {
    const repository = join(this.#folder, 'repository');
    await this.#run('git', '-C', repository, 'checkout', '-q', '-B', branch);
    await writeFile(join(repository, 'ci.sh'), script);
    await this.#run('git', '-C', repository, 'add', 'ci.sh');
    const author = ['-c', 'user.name=test', '-c', 'user.email=test@berth.test'];
    await this.#run('git', '-C', repository, ...author, 'commit', '-q', '-m', branch);
  }

  /** Writes the script of a branch, and tells the master of it, so that it makes a build. */
  async push(branch: string, script: string): Promise<void> {
    await this.commit(branch, script);
    const master = ['--master', `127.0.0.1:${this.#port}`];
    const auth = ['--auth', `changes:${PASSWORDS.CHANGES_PASSWORD}`];
    await this.#run(
      'buildbot',
      'sendchange',
      ...master,
      ...auth,
      '--who',
      'test',
      '--branch',
      branch,
      'ci.sh',
    );
  }

  /** Returns the last build of a branch when `test` is true of it. */
  async waitForBuild(branch: string, what: string, test: (build: Build) => boolean): Promise<Build> {
    return await waitFor(
      `the build of ${branch} to be ${what}`,
      async () => {
        const build = (await this.#builds()).findLast((one) => one.branch === branch);
        return build !== undefined && test(build) && build;
      },
      BUILD,
    );
  }

  async #builds(): Promise<Build[]> {
    return JSON.parse(
      await this.#run(this.#python, '-c', READ, join(this.#folder, 'master', 'state.sqlite')),
    ) as Build[];
  }

  async #run(program: string, ...parameters: string[]): Promise<string> {
    return await run(program, parameters, {
      folder: this.#folder,
      environment: this.#environment,
      timeoutMilliseconds: PROGRAM_MILLISECONDS,
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill('worker');
    await this.kill('master');
  }
}
