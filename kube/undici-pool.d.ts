/** The one part of undici that is used, by its path: the whole package costs 7 MB more memory. */
declare module 'undici/lib/dispatcher/pool.js' {
  export { Pool as default } from 'undici';
}
