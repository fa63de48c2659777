/** Defines which tags a host can have. */

/** Pattern of a tag, which is the name part of a label key: letters, digits, dashes, dots and underscores. */
export const TAG = /^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$/;
/** Longest tag in characters. Kubernetes has this limit for the name part of a label key. */
export const TAG_LENGTH = 63;
/** Message about a wrong tag. The message follows the name of the field. */
export const TAG_FORM = `must be 1 to ${TAG_LENGTH} letters, digits, "-", "_" and ".", with a letter or digit at both ends`;

export function isTag(text: string): boolean {
  return text.length <= TAG_LENGTH && TAG.test(text);
}
