/** A chart with one VM, which helm installs and waits for. */
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Cluster } from '../../hack/cluster/index.ts';
import { helm, type Outcome } from './chart.ts';

const NAMESPACE = 'platform-default';
/** Template of a chart with one VM. */
const TEMPLATE = `
apiVersion: berth.dev/v1alpha1
kind: VM
metadata:
  name: {{ .Release.Name }}
  labels: {{ toJson .Values.labels }}
spec: {{ toJson .Values.spec }}
`;

export class MachineChart {
  readonly #folder: string;

  private constructor(folder: string) {
    this.#folder = folder;
  }

  /** Writes the chart into a folder below `folder`. */
  static async write(folder: string): Promise<MachineChart> {
    const chart = join(folder, 'machine');
    await mkdir(join(chart, 'templates'), { recursive: true });
    await writeFile(join(chart, 'Chart.yaml'), 'apiVersion: v2\nname: machine\nversion: 1.0.0\n');
    await writeFile(join(chart, 'templates', 'vm.yaml'), TEMPLATE);
    return new MachineChart(chart);
  }

  /** Lets helm install or upgrade a release whose VM has its name and this spec, and wait for it. */
  release(
    { kubeconfig }: Pick<Cluster, 'kubeconfig'>,
    verb: 'install' | 'upgrade',
    name: string,
    values: { spec: object; labels?: object },
  ): Promise<Outcome> {
    const args = [verb, name, this.#folder, '--namespace', NAMESPACE, '--kubeconfig', kubeconfig, '--wait'];
    return helm([...args, '--timeout', '15s', '--values', '-'], JSON.stringify({ labels: {}, ...values }));
  }
}
