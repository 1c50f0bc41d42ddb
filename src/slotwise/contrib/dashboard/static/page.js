"use strict";
// Live updates and keys. Without this file every page still works.
