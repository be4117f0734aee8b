//! Photos of the operator's own: a folder for each class, a tab and a native peer that learn to tell them apart, and a photo of
//! the visitor's that the tab is asked about.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use barnraise_swarm::random::SplitMix64;
use barnraise_tests::browser::{Graphics, Tab};
use image::{Rgb, RgbImage};
use serde_json::json;

use super::looks::Looks;
use super::support::{LONG, SOON, test_run, turn};
use super::visiting::{RECORD, answer};

/// Stripes that lie, and stripes that stand.
const CLASSES: [&str; 2] = ["lying", "standing"];
const PHOTOS_PER_CLASS: usize = 60;
const RUN: &str = r#"
    [run]
    id = "stripes"
    [data.pictures]
    folder = "photos"
    height = 16
    width = 16
    [scheme.synchronous]
    target_batch_size = 128
    micro_batch_size = 16
    schedule = { peak = 0.003, warmup_steps = 5, decay = { kind = "constant" } }
"#;

/// A photo of stripes in two colours, of any size, width and place: nothing but their direction tells the classes apart.
fn stripes(class: usize, random: &mut SplitMix64) -> RgbImage {
    let side = |random: &mut SplitMix64| 60 + random.below(140) as u32;
    let (width, height) = (side(random), side(random));
    let mut colour = |from: usize| [(); 3].map(|()| (from + random.below(90)) as u8);
    let colours = [Rgb(colour(0)), Rgb(colour(165))];
    let (period, phase) = (width.min(height) / 4 + random.below(20) as u32, random.below(50) as u32);
    RgbImage::from_fn(width, height, |x, y| {
        let along = if class == 0 { y } else { x };
        colours[((along + phase) / (period / 2) % 2) as usize]
    })
}

fn take_photos(folder: &Path) -> Result<()> {
    let mut random = SplitMix64::new(1);
    for (class, name) in CLASSES.iter().enumerate() {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder)?;
        for n in 0..PHOTOS_PER_CLASS {
            let ending = if n % 2 == 0 { "png" } else { "jpg" };
            stripes(class, &mut random).save(folder.join(format!("{n}.{ending}")))?;
        }
    }
    Ok(())
}

/// The class that the model says of a photo that the visitor chooses.
async fn class_of(tab: &Tab, photo: &Path) -> Result<usize> {
    let n_answers = tab.read("predictions.length").await?.as_u64().context("a count")?;
    tab.choose_file("#photo", photo).await?;
    let answer = answer(tab, usize::try_from(n_answers)? + 1).await?;
    let of_standing = answer["probabilities"][1].as_f64().context("two classes")?;
    Ok(usize::from(of_standing > 0.5))
}

#[tokio::test]
async fn photos_in_two_folders_become_a_model_that_tells_a_visitors_own_apart() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(RUN)?;
    take_photos(&test_run.folder().join("photos"))?;
    let backbone = test_run.backbone().await?;
    let peer = test_run.join(&[&backbone.page(), "--device", "cpu"])?;
    let tab = Tab::open("photos", Graphics::NoAdapter, "about:blank").await?;
    tab.cdp("Page.addScriptToEvaluateOnNewDocument", json!({ "source": RECORD })).await?;
    tab.goto(&format!("{}/?device=cpu", backbone.page())).await?;
    tab.until("doing() === 'idle' && text('title') === 'Telling pictures apart'", SOON).await?;
    tab.click("#toggle").await?;
    tab.until("value('accepted') >= 1 && value('accuracy') >= 0.9", LONG).await?;
    tab.click("#toggle").await?;
    tab.until("doing() === 'idle'", SOON).await?;
    ensure!(tab.text("ask-title").await? == "Choose a photo", "a drawing is asked for");

    let mut random = SplitMix64::new(2);
    let folder = test_run.folder().to_owned();
    let mut n_right = 0;
    // So many that chance decides nothing: a model that is right nine times of ten has fewer right once in hundreds.
    for n in 0..20 {
        let photo = folder.join(format!("own-{n}.jpg"));
        stripes(n % 2, &mut random).save(&photo)?;
        n_right += usize::from(class_of(&tab, &photo).await? == n % 2);
    }
    ensure!(n_right >= 14, "{n_right} of 20 photos that it never saw are right at an accuracy of 0.9");
    let mut looks = Looks::begin().await?;
    looks.at(&tab, "photo").await?;
    looks.end()?;

    let broken = folder.join("broken.jpg");
    std::fs::write(&broken, "no picture")?;
    tab.choose_file("#photo", &broken).await?;
    tab.until("text('prediction').includes('no picture that this browser can read')", SOON).await?;
    peer.interrupt()?;
    Ok(())
}
