/**
 * Fetches packages of the distribution and unpacks them into a separate folder. Nothing is installed. Root is not needed, and the
 * machine's package lists stay unchanged, because apt gets its own state and cache folder.
 */
import { mkdir, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { isMissing } from '../../base/errors.ts';
import { run } from './run.ts';

/** Time limit of `apt-get update`. A working mirror takes 3 s. If a mirror does not answer, apt tries the next one. */
const UPDATE_TIMEOUT_MILLISECONDS = 120_000;
/** Time limit of a download: about 30 MB over a slow connection. */
const DOWNLOAD_TIMEOUT_MILLISECONDS = 600_000;
const UNPACK_TIMEOUT_MILLISECONDS = 60_000;

export interface PackageSource {
  /** Architecture as Debian names it: amd64 or arm64. */
  architecture: string;
  /** Suites of Debian, the preferred one first. If undefined, the packages come from the machine's own sources. */
  suites?: readonly [string, ...string[]];
  progress: (text: string) => void;
}

const DEBIAN = '[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian';

/** Packages of one architecture in `folder`. The first call that needs the package lists reads them. */
export class Packages {
  readonly #folder: string;
  readonly #source: PackageSource;
  #updated = false;

  constructor(folder: string, source: PackageSource) {
    this.#folder = folder;
    this.#source = source;
  }

  /** Returns the names of the packages that any of these packages directly depends on. Each call reads the package lists, which takes a second. */
  async dependencies(names: readonly string[]): Promise<string[]> {
    await this.#update();
    const qualified = names.map((name) => this.#qualified(name));
    const { stdout } = await run('apt-cache', ['depends', '--important', ...qualified], {
      environment: this.#environment(),
      timeoutMilliseconds: UNPACK_TIMEOUT_MILLISECONDS,
    });
    return [...stdout.matchAll(/^\s+(?:Pre)?Depends: ([^\s<:]+)/gm)].map((match) => match[1] ?? '');
  }

  /** Downloads and unpacks one package. apt checks it against the signed lists. Returns the folder of the package's files. */
  async unpack(name: string): Promise<string> {
    const target = join(this.#folder, 'unpacked', name);
    if (await exists(target)) {
      return target;
    }
    await this.#update();
    this.#source.progress(`fetching package ${name}`);
    const downloads = join(this.#folder, 'downloads', name);
    await rm(downloads, { recursive: true, force: true });
    await mkdir(downloads, { recursive: true });
    await run('apt-get', ['download', this.#qualified(name)], {
      environment: this.#environment(),
      cwd: downloads,
      timeoutMilliseconds: DOWNLOAD_TIMEOUT_MILLISECONDS,
    });
    const archive = (await readdir(downloads)).find((file) => file.endsWith('.deb'));
    if (archive === undefined) {
      throw new Error(`apt-get download ${name} left no package`);
    }
    const partial = `${target}.${process.pid}.partial`;
    await mkdir(partial, { recursive: true });
    await run('dpkg-deb', ['-x', join(downloads, archive), partial], {
      timeoutMilliseconds: UNPACK_TIMEOUT_MILLISECONDS,
    });
    await rename(partial, target);
    await rm(downloads, { recursive: true, force: true });
    return target;
  }

  /** Downloads and unpacks packages and all that they depend on. Returns the folder with the files of all of them. */
  async unpackWithDependencies(...names: readonly string[]): Promise<string> {
    const target = join(this.#folder, 'unpacked', `${names.join('+')}-with-dependencies`);
    if (await exists(target)) {
      return target;
    }
    await this.#update();
    this.#source.progress(`fetching ${names.join(', ')} and all that they depend on`);
    // No package is installed in this state, so apt fetches all of them. It installs none.
    const command = ['install', '--download-only', '-y', '--no-install-recommends'];
    await run('apt-get', [...command, ...names.map((name) => this.#qualified(name))], {
      environment: this.#environment(),
      timeoutMilliseconds: DOWNLOAD_TIMEOUT_MILLISECONDS,
    });
    const archives = join(this.#folder, 'cache', 'archives');
    const partial = `${target}.${process.pid}.partial`;
    await mkdir(partial, { recursive: true });
    for (const archive of (await readdir(archives)).filter((file) => file.endsWith('.deb'))) {
      await run('dpkg-deb', ['-x', join(archives, archive), partial], {
        timeoutMilliseconds: UNPACK_TIMEOUT_MILLISECONDS,
      });
    }
    await rename(partial, target);
    await rm(archives, { recursive: true });
    return target;
  }

  /** Downloads packages into an empty folder, without unpacking them. apt checks them against the signed lists. Returns their paths. */
  async download(names: readonly string[], folder: string): Promise<string[]> {
    await this.#update();
    this.#source.progress(`fetching ${names.length} packages`);
    await run('apt-get', ['download', ...names.map((name) => this.#qualified(name))], {
      environment: this.#environment(),
      cwd: folder,
      timeoutMilliseconds: DOWNLOAD_TIMEOUT_MILLISECONDS,
    });
    return (await readdir(folder)).filter((file) => file.endsWith('.deb')).map((file) => join(folder, file));
  }

  async #update(): Promise<void> {
    if (this.#updated) {
      return;
    }
    this.#source.progress('reading the package lists');
    const state = join(this.#folder, 'state');
    await mkdir(join(state, 'lists', 'partial'), { recursive: true });
    await mkdir(join(this.#folder, 'cache', 'archives', 'partial'), { recursive: true });
    await writeFile(join(state, 'status'), '');
    await writeFile(this.#configuration(), this.#aptConfiguration());
    await mkdir(join(this.#folder, 'sources'), { recursive: true });
    const suites = this.#source.suites ?? [];
    const sources = suites.map((suite) => `deb ${DEBIAN} ${suite} main\n`);
    await writeFile(join(this.#folder, 'sources', 'debian.list'), sources.join(''));
    await run('apt-get', ['update'], {
      environment: this.#environment(),
      timeoutMilliseconds: UPDATE_TIMEOUT_MILLISECONDS,
    });
    this.#updated = true;
  }

  #aptConfiguration(): string {
    return [
      `Dir::State "${this.#folder}/state";`,
      `Dir::State::status "${this.#folder}/state/status";`,
      `Dir::Cache "${this.#folder}/cache";`,
      `APT::Architecture "${this.#source.architecture}";`,
      // Without `#clear`, the machine's own architectures would stay in the list.
      '#clear APT::Architectures;',
      `APT::Architectures { "${this.#source.architecture}"; };`,
      'Acquire::Languages "none";',
      'Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";',
      'APT::Sandbox::User "";',
      ...this.#suiteConfiguration(),
      '',
    ].join('\n');
  }

  #suiteConfiguration(): string[] {
    const [preferred] = this.#source.suites ?? [];
    return preferred === undefined
      ? []
      : [
          'Dir::Etc::sourcelist "/dev/null";',
          `Dir::Etc::sourceparts "${this.#folder}/sources";`,
          `APT::Default-Release "${preferred}";`,
          // apt locks its cache for an installation as root does.
          'Debug::NoLocking "1";',
        ];
  }

  #configuration(): string {
    return join(this.#folder, 'apt.conf');
  }

  #environment(): Record<string, string> {
    return { APT_CONFIG: this.#configuration(), LC_ALL: 'C' };
  }

  #qualified(name: string): string {
    return `${name}:${this.#source.architecture}`;
  }
}

async function exists(path: string): Promise<boolean> {
  try {
    await readdir(path);
    return true;
  } catch (error) {
    if (isMissing(error)) {
      return false;
    }
    throw error;
  }
}
