//! A run's page, and its snapshot once it is over.

use jni::Env;
use jni::objects::{JObject, JString};
use phalanx_job::page::{self, Room};
use phalanx_types::RunSnapshot;
use phalanx_types::run_snapshot::Problem;

use crate::errors::{Call, ThrowException};
use crate::methods::methods;
use crate::values::{java_string, optional_string, string};

methods! {
    run_page(snapshot: JString) -> JString;
    ended_snapshot(snapshot: JString, kind: JString, text: JString) -> JString;
}

fn run_page<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    snapshot: JString<'local>,
) -> Call<JString<'local>> {
    let snapshot = string(env, &snapshot)?;
    java_string(env, &page::run_page(&snapshot, "", Room::Page))
}

/// `kind` is null where the run ended well.
fn ended_snapshot<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    snapshot: JString<'local>,
    kind: JString<'local>,
    text: JString<'local>,
) -> Call<JString<'local>> {
    let (snapshot, text) = (string(env, &snapshot)?, string(env, &text)?);
    let problem = optional_string(env, &kind)?.map(|kind| Problem { kind, text });
    java_string(env, &RunSnapshot::ended_json(&snapshot, problem.as_ref()))
}
