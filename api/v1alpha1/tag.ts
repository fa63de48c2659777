/** Tags of hosts. */

/** Pattern of a tag: the name part of a Kubernetes label key, with letters, digits, dashes, dots and underscores. */
export const TAG = /^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$/;
/** Longest tag in characters. A tag is the name of a label. */
export const TAG_LENGTH = 63;
/** Form of a tag, as a phrase after the name of the field. */
export const TAG_FORM = `must be 1 to ${TAG_LENGTH} letters, digits, "-", "_" and ".", with a letter or digit at both ends`;

export function isTag(text: string): boolean {
  return text.length <= TAG_LENGTH && TAG.test(text);
}
