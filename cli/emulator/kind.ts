/** Defines the columns of tables with emulators, and the names of the kind in messages. */
import type { EmulatorItem } from '../../api/http/emulator.ts';
import { emulatorItem } from '../../api/http/emulatoritem.ts';
import type { Emulator } from '../../api/v1alpha1/emulator.ts';
import { EMULATORS } from '../../api/v1alpha1/resources.ts';
import type { Kind } from '../objects/kind.ts';
import type { Column } from '../output.ts';
import { age } from '../text.ts';

export const EMULATOR_KIND: Kind<Emulator> = {
  type: EMULATORS,
  noun: 'emulator',
  plural: 'emulators',
  columns: [
    ofItem('NAME', ({ name }) => name),
    ofItem('STATUS', ({ status }) => status),
    ofItem('VM', ({ vm }) => vm),
    ofItem('NODE', ({ node }) => node),
    ofItem('IP', ({ relayIp }) => relayIp),
    ofItem('ADB', ({ relayPort }) => relayPort),
    ofItem('PLATFORM', ({ platform }) => platform),
    { header: 'AGE', value: ({ metadata }) => age(metadata.creationTimestamp) },
    { ...ofItem('TYPE', ({ imageType }) => imageType), isWide: true },
    { ...ofItem('DEVICE', ({ deviceProfile }) => deviceProfile), isWide: true },
    { ...ofItem('MESSAGE', ({ errorMessage, message }) => errorMessage ?? message), isWide: true },
  ],
  itemOf: emulatorItem,
  isShared: false,
};

function ofItem(
  header: string,
  value: (item: EmulatorItem) => string | number | undefined,
): Column<Emulator> {
  return { header, value: (emulator) => value(emulatorItem(emulator)) };
}
