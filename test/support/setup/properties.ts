/**
 * Properties generate as much as their `maxLength` says, in every project that has this among its setupFiles. By itself,
 * fast-check ends histories after ten steps and texts after ten characters, whatever `maxLength` allows.
 */
import * as fc from 'fast-check';

fc.configureGlobal({ defaultSizeToMaxWhenMaxSpecified: true });
