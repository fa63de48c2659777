/** The kinds that have a list of their own in the console. */
import type { KindTable } from '../model/columns.ts';

/** Tables of all kinds. The bundler puts them here, so that the page has the columns of `kubectl get` without the schemas. */
declare const BERTH_KINDS: readonly KindTable[];

/** Names of the lists, in the order of the navigation. VMs have a page of their own. */
const NAMES: Readonly<Record<string, string>> = {
  images: 'Images',
  vmpools: 'Pools',
  vmsnapshots: 'Snapshots',
  imagecacheentries: 'Cache',
  emulators: 'Emulators',
  runnersets: 'Runner sets',
  servers: 'Servers',
  isos: 'ISOs',
  vmconfigs: 'Configs',
};

export interface KindList {
  readonly name: string;
  readonly table: KindTable;
}

export const KIND_LISTS: readonly KindList[] = Object.entries(NAMES).flatMap(([plural, name]) => {
  const table = BERTH_KINDS.find((one) => one.plural === plural);
  return table === undefined ? [] : [{ name, table }];
});
