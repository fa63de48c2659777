/** Tells the health of objects as clients see it that wait for them: the library of Helm and Flux, and the script for Argo CD. */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parse } from 'yaml';
import type { KubeObject } from '../../kube/objects.ts';
import { resolveChartTools } from '../../hack/cluster/toolchain/toolchain.ts';
import { run } from './chart.ts';

/** Page with the health script. */
const PAGE = join(import.meta.dirname, '..', '..', 'docs', 'operate', 'install.md');

/** Health of an object: the status and message of kstatus, and those of the script for Argo CD. */
export interface Verdict {
  readonly kstatus: string;
  readonly message: string;
  readonly script: string;
  readonly reported: string;
}

export class Health {
  readonly #script: string;

  private constructor(script: string) {
    this.#script = script;
  }

  /** Writes the script of the documentation into the folder. */
  static async open(folder: string): Promise<Health> {
    const script = join(folder, 'health.lua');
    await writeFile(script, await documentedScript());
    return new Health(script);
  }

  async judge(objects: readonly KubeObject[]): Promise<Verdict[]> {
    const { health } = await resolveChartTools();
    const { code, stdout, stderr } = await run(health, [this.#script], JSON.stringify(objects));
    if (code !== 0) {
      throw new Error(stderr);
    }
    return JSON.parse(stdout) as Verdict[];
  }
}

/** Returns the health script for Argo CD from the page about installation. */
async function documentedScript(): Promise<string> {
  const [, block = ''] =
    /```yaml\n(data:\n {2}resource\.customizations[\s\S]*?)```/.exec(await readFile(PAGE, 'utf8')) ?? [];
  const { data } = parse(block) as { data: Record<string, string> };
  const kinds = parse(data['resource.customizations'] ?? '') as Record<string, Record<string, string>>;
  return kinds['berth.dev/*']?.['health.lua'] ?? '';
}
