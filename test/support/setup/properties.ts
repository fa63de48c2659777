/**
 * Lets property tests generate values up to their `maxLength`, in every project that has this file in its setupFiles. By default,
 * fast-check ends histories after ten steps and texts after ten characters, whatever `maxLength` allows.
 */
import * as fc from 'fast-check';

fc.configureGlobal({ defaultSizeToMaxWhenMaxSpecified: true });
