/** Computes the labels and the condition with which a Node shows the emulators that its host can run. The functions are pure. */
import { SYSTEM_IMAGE_LABEL_PREFIX } from '../../api/v1alpha1/names.ts';
import type { EmulatorOffer } from '../drivers/driver.ts';

/** Largest number of system images that a Node lists. A complete SDK has about 64 system images for one architecture. */
const LISTED_IMAGES = 64;
/** Largest number of unlisted system images that the condition's message names, so that the message stays readable. */
const NAMED_IMAGES = 8;
/** Kubernetes limits the name of a label: its length without the prefix, and its characters. */
const LABEL_NAME_LENGTH = 63;
const LABEL_NAME = /^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$/;

function isLabelName(name: string): boolean {
  return name.length <= LABEL_NAME_LENGTH && LABEL_NAME.test(name);
}

function listedImages(offer: EmulatorOffer): string[] {
  return offer.kind === 'none'
    ? []
    : offer.systemImages.filter(isLabelName).toSorted().slice(0, LISTED_IMAGES);
}

/** Returns one label for each system image that the host offers. */
export function emulatorLabels(offer: EmulatorOffer): Record<string, string> {
  return Object.fromEntries(listedImages(offer).map((name) => [SYSTEM_IMAGE_LABEL_PREFIX + name, '']));
}

/** Returns whether the host offers emulators, and the message of its condition. The message names system images without a label. */
export function emulatorCondition(offer: EmulatorOffer): { offered: boolean; message: string } {
  if (offer.kind === 'none') {
    return { offered: false, message: offer.message };
  }
  const listed = new Set(listedImages(offer));
  const others = offer.systemImages.filter((name) => !listed.has(name)).toSorted();
  const count = listed.size === 1 ? '1 system image' : `${listed.size} system images`;
  return { offered: true, message: `The host has ${count} for emulators${leftOutWords(others)}` };
}

function leftOutWords(names: readonly string[]): string {
  if (names.length === 0) {
    return '';
  }
  const named = names
    .slice(0, NAMED_IMAGES)
    .map((name) => JSON.stringify(name.slice(0, LABEL_NAME_LENGTH + 1)));
  const more = names.length > NAMED_IMAGES ? ` and ${names.length - NAMED_IMAGES} more` : '';
  const why = `a name must fit into a label, and a Node lists at most ${LISTED_IMAGES} images`;
  return `. Its Node does not list ${named.join(', ')}${more}: ${why}`;
}
