/** Names of new images. */
import { NEW_IMAGE_NAME_LENGTH, isObjectName } from '../../api/v1alpha1/names.ts';
import { CommandError, EXIT } from '../errors.ts';

/** Checks the name by the rule of the HTTP API. @throws CommandError when the name is not allowed for an image. */
export function checkImageName(name: string): void {
  if (!isObjectName(name) || name.length > NEW_IMAGE_NAME_LENGTH) {
    throw new CommandError(
      `The name ${JSON.stringify(name)} is not allowed for an image. A name must have at most ${NEW_IMAGE_NAME_LENGTH} characters: lower-case letters, digits, dashes and dots`,
      EXIT.usage,
    );
  }
}
