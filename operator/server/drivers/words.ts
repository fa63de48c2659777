/** Texts of controllers in messages. A controller is not trusted: its texts are bounded, stay on one line and never repeat a password. */
import { basicToken } from './basic.ts';
import type { Credentials } from './driver.ts';

/** Largest number of characters of a controller's text. A status has room for a sentence, not for a page. */
const WORDS_LIMIT = 300;
/** Control characters, characters that change the direction of text, and white space. */
const BREAKING = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\s]+/gu;

/** Returns a text of a controller on one line of at most 300 characters, without the password and its forms in requests. */
export function quoteController(text: string, credentials: Credentials | undefined): string {
  let safe = text;
  for (const secret of credentials === undefined ? [] : [basicToken(credentials), credentials.password]) {
    safe = secret === '' ? safe : safe.replaceAll(secret, '***');
  }
  return safe.replaceAll(BREAKING, ' ').trim().slice(0, WORDS_LIMIT).toWellFormed();
}
