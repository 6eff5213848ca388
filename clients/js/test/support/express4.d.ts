/** Express 4 under its other name; what is used of it here is as in 5. */
declare module "express4" {
  export { default } from "express";
}
