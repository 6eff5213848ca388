/** Types of Express 4 under its other name; the parts used here are as in 5. */
declare module "express4" {
  export { default } from "express";
}
